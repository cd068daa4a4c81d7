// SPDX-License-Identifier: Apache-2.0
// Markdown as elements. Text of a model only ever becomes text nodes and, of http, https and mailto alone, targets of links;
// an image becomes a link to it, since the page loads nothing. Time grows with the text's length: nesting ends somewhere.
"use strict";

const kDeepest = 6;  // levels of lists and quotes, and of emphasis
const kLongestLink = 500;
const kLongestMark = 1000;  // a longer line is a paragraph, whatever it begins with
const kFence = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const kItem = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)/;
const kDelimiters = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function button(text, label, action) {
  const made = element("button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

// What may scroll by itself: the keyboard reaches it, and screen readers name it.
function scrolling(name, label, ...children) {
  const made = element(name, ...children);
  made.tabIndex = 0;
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", label);
  return made;
}

// Says on the button that it was done. Without the clipboard's interface, as on plain http, the old way.
async function copy(text, pressed) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    const field = element("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
    pressed.focus();
  }
  pressed.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { pressed.textContent = "Copy"; }, 1500);
}

function link(target, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return element("span", ...children);
  const made = element("a", ...children);
  made.href = target;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

// The rules of what may stand in a line, first match first. Each gives null or [node, end].
const kInline = {
  "\\": (text, at) => /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [text[at + 1], at + 2] : null,
  "`": (text, at, depth, missing) => {
    const mark = /`+/y;
    mark.lastIndex = at;
    const ticks = mark.exec(text)[0];
    const end = closing(text, ticks, at + ticks.length, missing);
    return end < 0 ? [ticks, at + ticks.length] : [element("code", text.slice(at + ticks.length, end)), end + ticks.length];
  },
  "*": (text, at, depth, missing) => emphasis(text, at, depth, missing, {"**": "strong", "*": "em"}),
  "_": (text, at, depth, missing) =>
    /\w/.test(text[at - 1] ?? " ") ? null : emphasis(text, at, depth, missing, {"__": "strong", "_": "em"}),
  "~": (text, at, depth, missing) => emphasis(text, at, depth, missing, {"~~": "del"}),
  "!": (text, at, depth, missing) => {
    const found = text[at + 1] === "[" ? bracketed(text, at + 1, depth, missing) : null;
    return found && [found[0], found[1]];
  },
  "[": (text, at, depth, missing) => bracketed(text, at, depth, missing),
  "<": (text, at) => {
    const found = match(/<(https?:\/\/[^\s<>]{1,2000})>/y, text, at);
    return found && [link(found[1], [found[1]]), at + found[0].length];
  },
  "h": (text, at) => {
    const found = /\w/.test(text[at - 1] ?? " ") ? null : match(/https?:\/\/[^\s<>`*]{0,1999}[^\s<>`*.,:;!?'")\]]/y, text, at);
    return found && [link(found[0], [found[0]]), at + found[0].length];
  },
};

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

// The next `mark` from `at`, -1 if there is none: asked once for the rest of a text.
function closing(text, mark, at, missing) {
  if (missing.has(mark)) return -1;
  const end = text.indexOf(mark, at);
  if (end < 0) missing.add(mark);
  return end;
}

function emphasis(text, at, depth, missing, names) {
  if (depth >= kDeepest) return null;
  for (const [mark, name] of Object.entries(names)) {
    const begin = at + mark.length;
    if (!text.startsWith(mark, at) || /\s|^$/.test(text[begin] ?? "")) continue;
    let end = closing(text, mark, begin + 1, missing);
    // Not the half of a longer mark, not after a space, and not within a name like snake_case.
    while (end >= 0 && (text[end - 1] === " " || (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) ||
                        (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? " ")))) {
      end = closing(text, mark, end + (text[end + 1] === mark ? 2 : 1), missing);
    }
    if (end < 0) continue;
    return [element(name, ...inline(text.slice(begin, end), depth + 1)), end + mark.length];
  }
  return null;
}

function bracketed(text, at, depth, missing) {
  const middle = closing(text, "](", at + 1, missing);
  if (middle < 0 || middle - at > kLongestLink || depth >= kDeepest) return null;
  const target = match(/\]\(\s*([^\s()]{0,2000}(?:\([^\s()]{0,200}\)[^\s()]{0,200})?)(?:\s+"[^"\n]{0,200}")?\s*\)/y, text, middle);
  if (!target) return null;
  return [link(target[1], inline(text.slice(at + 1, middle) || target[1], depth + 1)), middle + target[0].length];
}

function inline(text, depth = 0) {
  const nodes = [], missing = new Set();
  let plain = "";
  for (let at = 0; at < text.length;) {
    const found = kInline[text[at]]?.(text, at, depth, missing);
    if (!found) {
      plain += text[at++];
    } else if (typeof found[0] === "string") {
      plain += found[0];
      at = found[1];
    } else {
      if (plain) nodes.push(plain);
      plain = "";
      nodes.push(found[0]);
      at = found[1];
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function cells(line) {
  return line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));
}

function codeBlock(code, language) {
  const inner = element("code", code);
  const pre = scrolling("pre", language ? `${language} code` : "Code", inner);
  const head = element("header", language, button("Copy", "Copy the code", event => copy(inner.textContent, event.currentTarget)));
  const made = element("div", head, pre);
  made.className = "code";
  return made;
}

function tableBlock(lines) {
  const columns = cells(lines[0]).length;
  const row = (line, name) => element("tr", ...cells(line).slice(0, columns).map(cell => element(name, ...inline(cell))));
  const table = element("table", element("thead", row(lines[0], "th")), element("tbody", ...lines.slice(2).map(line => row(line, "td"))));
  const made = scrolling("div", "Table", table);
  made.className = "wide";
  return made;
}

function listBlock(lines, depth) {
  const first = kItem.exec(lines[0]);
  const list = element(/\d/.test(first[2]) ? "ol" : "ul");
  if (list.localName === "ol") list.start = parseInt(first[2], 10);
  const items = [];
  let width = 0;
  for (const line of lines) {
    const item = kItem.exec(line);
    if (item && item[1].length < Math.max(width, 2)) {
      width = item[0].length - Math.max(item[3].length - 1, 0);
      items.push([line.slice(item[0].length)]);
    } else {
      items.at(-1).push(line.replace(new RegExp(`^ {0,${width}}`), ""));
    }
  }
  for (const item of items) {
    const parts = blocks(item, depth + 1);
    // A short item has no paragraph of its own.
    const shown = parts.map(part => part.render());
    list.append(element("li", ...shown.flatMap((part, i) => part.localName === "p" && i === 0 ? [...part.childNodes] : [part])));
  }
  return list;
}

// How many of `lines` from `at` belong to the block that begins there, and what makes it; null: a paragraph's line.
function begun(lines, at, depth) {
  const line = lines[at];
  if (line.length > kLongestMark) return null;
  const fence = kFence.exec(line);
  const until = stop => {
    let end = at + 1;
    while (end < lines.length && !stop(end)) ++end;
    return end;
  };
  if (fence) {
    const end = until(i => lines[i].trim().startsWith(fence[1]) && /^([`~])\1*$/.test(lines[i].trim()));
    return {end: Math.min(end + 1, lines.length), render: () => codeBlock(lines.slice(at + 1, end).join("\n"), fence[2])};
  }
  const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line);
  if (heading) return {end: at + 1, render: () => element(`h${heading[1].length}`, ...inline(heading[2]))};
  if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) return {end: at + 1, render: () => element("hr")};
  if (depth < kDeepest && /^ {0,3}>/.test(line)) {
    const end = until(i => !/^ {0,3}>/.test(lines[i]));
    const inner = () => blocks(lines.slice(at, end).map(each => each.replace(/^ {0,3}> ?/, "")), depth + 1);
    return {end, render: () => element("blockquote", ...inner().map(part => part.render()))};
  }
  if (depth < kDeepest && kItem.test(line)) {
    const end = until(i => !kItem.test(lines[i]) && !/^ {2,}\S/.test(lines[i]) &&
      !(lines[i].trim() === "" && i + 1 < lines.length && (kItem.test(lines[i + 1]) || /^ {2,}\S/.test(lines[i + 1]))));
    return {end, render: () => listBlock(lines.slice(at, end), depth)};
  }
  if (line.includes("|") && at + 1 < lines.length && lines[at + 1].length <= kLongestMark && kDelimiters.test(lines[at + 1]) &&
      cells(line).length === cells(lines[at + 1]).length) {
    const end = until(i => !lines[i].includes("|") && i > at + 1);
    return {end, render: () => tableBlock(lines.slice(at, end))};
  }
  return null;
}

// The blocks of a text: what each was made of, and what makes it an element.
function blocks(lines, depth = 0) {
  const made = [];
  for (let at = 0; at < lines.length;) {
    if (lines[at].trim() === "") {
      ++at;
      continue;
    }
    const block = begun(lines, at, depth);
    let end = block?.end ?? at + 1;
    if (!block) while (end < lines.length && lines[end].trim() !== "" && !begun(lines, end, depth)) ++end;
    const source = lines.slice(at, end);
    made.push({source: source.join("\n"), render: block?.render ?? (() => element("p", ...inline(source.join("\n").trim())))});
    at = end;
  }
  return made;
}

// Shows `text` in `view`. Blocks that are as they were before stay the same elements: a selection in them lasts.
function showMarkdown(view, text) {
  const before = view.shownBlocks ?? [];
  const now = blocks(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"));
  let same = 0;
  while (same < now.length && now[same].source === before[same]) ++same;
  while (view.childNodes.length > same) view.lastChild.remove();
  for (const block of now.slice(same)) view.append(block.render());
  view.shownBlocks = now.map(block => block.source);
}
