# SPDX-License-Identifier: Apache-2.0
"""The chat page with answers of the test's own, which the page reads as those of its server: at the widths of a phone and
of a desk, bright and dark."""

import json

from browser import check, eventually

_ENTER, _TAB, _ESCAPE, _SHIFT = "\ue007", "\ue004", "\ue00c", "\ue008"

# Requests for answers end here: window.asked has their bodies, the test writes the events.
_SCRIPT = r"""
window.asked = [];
const known = window.fetch;
window.fetch = async (url, options) => {
  if (!String(url).endsWith("completions")) return known(url, options);
  window.asked.push(JSON.parse(options.body));
  if (window.refused) {
    const message = window.refused;
    window.refused = "";
    return new Response(JSON.stringify({error: {message}}), {status: 400});
  }
  const stream = new ReadableStream({start(controller) { window.answer = controller; }});
  options.signal.addEventListener("abort", () => window.answer.error(new DOMException("aborted", "AbortError")));
  return new Response(stream);
};
window.emit = data => window.answer.enqueue(new TextEncoder().encode(`id: 1\ndata: ${data}\n\n`));
"""

# What is wider than the screen, but for what scrolls in a box of its own; what text is hard to read. A phone zooms out where
# a page is too wide, and innerWidth grows with it: the width of the screen is that of the root.
_MEASURES = r"""
const root = document.scrollingElement, screen = root.clientWidth;
const wide = [...document.body.querySelectorAll("*")].filter(each => {
  const box = each.getBoundingClientRect();
  return each.checkVisibility() && !each.closest("pre, .wide, .unseen, option") && (box.right > screen + .5 || box.left < -.5);
}).map(each => each.outerHTML.slice(0, 80));
return {wide, screen, scrollWidth: root.scrollWidth, scrollHeight: root.scrollHeight, height: innerHeight};
"""
_CONTRAST = r"""
const numbers = colour => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].map(byte => byte / 255);
};
const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const probe = document.body.appendChild(document.createElement("i"));
probe.style.backgroundColor = "Canvas";
const paper = numbers(getComputedStyle(probe).backgroundColor);
probe.remove();
const behind = each => each ? over(numbers(getComputedStyle(each).backgroundColor), behind(each.parentElement)) : paper;
const light = colour => colour.slice(0, 3).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const worst = [];
for (const each of document.body.querySelectorAll("*")) {
  const own = [...each.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (!own || !each.checkVisibility() || each.closest("script, style, .unseen")) continue;
  const back = behind(each), ink = over(numbers(getComputedStyle(each).color), back);
  const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
  worst.push([(a + .05) / (b + .05), each.outerHTML.slice(0, 60)]);
}
return worst.sort((a, b) => a[0] - b[0])[0];
"""

RICH = f"""# A title

A paragraph with **bold**, *italic*, `code`, a [link](https://example.com/a_b) and {"long" * 60}.

1. first
   - nested `one`
   - nested two
2. second

```python
def f(x): return {" + ".join(f"x{i}" for i in range(40))}  # <script>window.attacked = 1</script>
```

| column | {" | ".join(f"value {i}" for i in range(12))} |
|---|{"---|" * 12}
| row | {" | ".join(str(i) * 9 for i in range(12))} |

> quoted

<script>window.attacked = 1</script> <img src="x" onerror="window.attacked = 1"> [bad](javascript:window.attacked=1)
![picture](https://example.com/picture.png)
"""

# Markdown and what it becomes.
_CASES = {
    "a *b* **c _d_** ~~e~~": "<p>a <em>b</em> <strong>c <em>d</em></strong> <del>e</del></p>",
    "snake_case_name 2 * 3 * 4 **": "<p>snake_case_name 2 * 3 * 4 **</p>",
    "_a b_c d_": "<p><em>a b_c d</em></p>",
    r"\*a\* ``b`c``": "<p>*a* <code>b`c</code></p>",
    "<b>&amp;": "<p>&lt;b&gt;&amp;amp;</p>",
    "- a\n- b\n  - c\n\n    d": "<ul><li>a</li><li>b<ul><li>c<p>d</p></li></ul></li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> - b": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>",
    "# a\nb\n***": "<h1>a</h1><p>b</p><hr>",
    "[a](ftp://b)": "<p><span>a</span></p>",
    "see https://a.b/c_d_e).": '<p>see <a href="https://a.b/c_d_e" target="_blank" rel="noopener noreferrer nofollow">'
                              "https://a.b/c_d_e</a>).</p>",
}

# Each would take minutes where time grew with the square of the length.
_HOSTILE = ["*a " * 40000, "**" * 40000, "[" * 40000, "[a](" * 20000, "`" * 39999 + " `", "> " * 20000, "- " * 20000,
            "> a\n" * 20000, "- a\n" * 20000, "# " + " " * 40000 + "x", "```" + "x" * 40000 + "`", "a|b\n-|" + " " * 40000 + "x",
            "_a" * 40000, "http" * 20000, "![" * 20000, "\n" * 80000]


def _open(browser, address, width, height, phone):
    browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
                     mobile=phone)
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=phone)
    browser.open(address)
    eventually(lambda: browser.text("#facts") != "connecting…", f"the page at {width} px connects")
    browser.run(_SCRIPT)


def _ask(browser, text):
    browser.run("document.getElementById('input').value = arguments[0]", text)
    before = browser.run("return asked.length")
    browser.click("#send")
    eventually(lambda: browser.run("return asked.length") > before, "the page asks")
    return browser.run("return asked.at(-1)")


def _say(browser, text="", reasoning="", reason=None):
    delta = {"content": text} | ({"reasoning_content": reasoning} if reasoning else {})
    browser.run("emit(arguments[0])", json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    # Two frames: what came is shown.
    browser.devtools("Runtime.evaluate", awaitPromise=True,
                     expression="new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _end(browser, reason="stop"):
    _say(browser, reason=reason)
    browser.run("emit('[DONE]')")
    eventually(lambda: browser.shown("#send"), "the answer ends")


def _fits(browser, size, what):
    found = browser.run(_MEASURES)
    check((found["screen"], found["height"]) == size, f"the screen is {size}: {what}")
    check(found["wide"] == [] and found["scrollWidth"] <= size[0], f"nothing is wider than it: {what} {found['wide']}")
    check(found["scrollHeight"] <= size[1], f"and the page is not taller than it: {what}")


def _on_top(browser, css, what):
    """Whether a finger in the middle of it meets it."""
    check(browser.run("const it = document.querySelector(arguments[0]), box = it.getBoundingClientRect();"
                      "return it === document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)"
                      " && box.bottom <= innerHeight && box.right <= innerWidth;", css), what)


def _check_layout(browser, size):
    _fits(browser, size, "empty")
    check(browser.run("return document.getElementById('input').offsetWidth") >= 240, "there is room to write")
    _ask(browser, "Show everything, " + "unbroken" * 30)
    _say(browser, RICH)
    _fits(browser, size, "a rich answer")
    _on_top(browser, "#stop", "Stop can be reached")
    browser.click("#settings summary")
    check(browser.shown("#system"), "the settings open")
    _fits(browser, size, "with the settings open")
    _on_top(browser, "#stop", "and Stop, too")
    check(browser.run("return document.getElementById('log').clientHeight") >= size[1] / 3, "the conversation has room")
    browser.click("#settings summary")
    _end(browser)


def _check_text_is_text(browser):
    check(browser.run("return window.attacked === undefined && !document.querySelector('.turn script, .turn img')"),
          "a script and an image of model text stay text")
    check("<script>window.attacked = 1</script> <img" in browser.text(".text"), "which is shown")
    targets = browser.run("return [...document.querySelectorAll('.turn a')].map(each => each.getAttribute('href'))")
    check(targets == ["https://example.com/a_b", "https://example.com/picture.png"], f"links are of http alone: {targets}")
    loaded = browser.run("return performance.getEntriesByType('resource').map(each => each.name)"
                         ".filter(name => !name.startsWith(location.origin))")
    check(loaded == [], "nothing is loaded from elsewhere")


def _check_scroll(browser):
    position = "return Math.round(document.getElementById('log').scrollTop)"
    left = "const log = document.getElementById('log'); return log.scrollHeight - log.scrollTop - log.clientHeight"
    _ask(browser, "Go on")
    for _ in range(30):
        _say(browser, "A line of a long answer.\n\n")
    check(browser.run(left) < 2, "the page follows an answer")
    browser.run("document.getElementById('log').scrollTop = 7")
    eventually(lambda: browser.shown("#latest"), "reading back is noticed")
    for _ in range(10):
        _say(browser, "And another.\n\n")
    check(browser.run(position) == 7, "no scroll is stolen")
    _on_top(browser, "#latest", "a button leads to the end")
    browser.click("#latest")
    _say(browser, "The last.\n\n")
    check(browser.run(left) < 2 and not browser.shown("#latest"), "and the page follows again")
    browser.run("document.getElementById('log').scrollTop = 7")
    eventually(lambda: browser.shown("#latest"), "reading back once more")
    browser.run("emit(JSON.stringify({error: {message: 'the worker was lost'}}))")
    eventually(lambda: browser.text(".error").endswith("the worker was lost"), "an error is shown")
    _on_top(browser, ".turn:last-child .error", "where it can be seen")
    check("A line of a long answer." in browser.text(".text"), "below what had come")


def _check_stop_and_again(browser):
    browser.click("#clear")
    browser.run("temperature.value = ''; tokens.value = '9'; system.value = 'Be brief'")
    body = _ask(browser, "One")
    check(body["messages"] == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "One"}]
          and body["max_tokens"] == 9 and "temperature" not in body, "settings are sent")
    _say(browser, "Half of an ans")
    browser.press([_ESCAPE])
    eventually(lambda: browser.text(".mark") == "stopped", "Escape stops, which is marked")
    check(browser.run("return document.activeElement.id") == "input", "and leaves the field ready")
    browser.click(".below button:last-child")
    eventually(lambda: browser.run("return asked.length") >= 2 and browser.shown("#stop"), "it is asked again")
    check(browser.run("return asked.at(-1).messages.length === 2 && asked.at(-1).seed !== asked.at(-2).seed"), "without the old answer")
    _say(browser, "<thi")
    _say(browser, "nk>\nhm, **one**\n</thi")
    check(browser.text(".think div") == "hm, **one**\n</thi" and browser.text("summary").startswith("Thinking"), "it thinks")
    _say(browser, "nk>\n\nAnswer **one**")
    check(browser.text(".text") == "Answer one" and browser.run("return !document.querySelector('.think').open"), "which is folded")
    _end(browser, "length")
    check(browser.text(".assistant").count("Answer one") == 1 and "limit" in browser.text(".mark"), "one answer, cut at the limit")
    body = _ask(browser, "Two")
    check(body["messages"][1:] == [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Answer **one**"},
                                   {"role": "user", "content": "Two"}], "the next question has the answer without the thought")
    _say(browser, reasoning="a thought of the server's")
    _say(browser, "Text\n\n```c\nint x;\n```")
    _end(browser)
    check(browser.text(".think div").endswith("a thought of the server's"), "reasoning_content is folded, too")
    browser.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    for css, want in ((".code button", "int x;"), (".assistant:last-child .below button", "Text\n\n```c\nint x;\n```")):
        browser.click(css)
        eventually(lambda css=css: browser.text(css).startswith("Copied"), f"{css} copies")
        got = browser.devtools("Runtime.evaluate", awaitPromise=True, expression="navigator.clipboard.readText()")["result"]["value"]
        check(got == want, f"the source: {got!r}")
    browser.run("window.refused = 'temperature = 9: allowed is 0 to 5'")
    _ask(browser, "Three")
    eventually(lambda: browser.text(".error").endswith("temperature = 9: allowed is 0 to 5"), "a refusal is shown")
    body = _ask(browser, "Four")
    check([m["content"] for m in body["messages"] if m["role"] == "user"] == ["One", "Two", "Four"], "and not sent again")
    browser.run("answer.close()")
    eventually(lambda: "in the midst" in browser.text(".error"), "an answer that is cut off is an error")


def _check_keyboard(browser):
    browser.click("#clear")
    browser.press([_TAB])
    check(browser.run("return document.activeElement.id") == "send", "Tab goes from the text to Send")
    browser.press([_TAB])
    check(browser.run("return document.activeElement.localName") == "summary", "and to the settings")
    browser.press([_ENTER])
    check(browser.run("return document.getElementById('settings').open"), "which Enter opens")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    unnamed = [node["role"]["value"] for node in nodes
               if node.get("role", {}).get("value") in ("button", "textbox", "spinbutton", "form", "log", "region", "article")
               and not node["ignored"] and not node.get("name", {}).get("value")]
    check(unnamed == [], f"whatever can be used has a name for screen readers {unnamed}")
    browser.press([_ENTER])
    browser.run("document.getElementById('input').focus()")
    browser.type("#input", "a" + _SHIFT + _ENTER + _SHIFT + "b")
    check(browser.run("return document.getElementById('input').value") == "a\nb", "Shift+Enter is a line")
    browser.press([_ENTER])
    eventually(lambda: browser.run("return asked.at(-1).messages.at(-1).content") == "a\nb", "Enter sends")
    _end(browser)


def _check_markdown(browser):
    shown = "const view = document.createElement('div'); showMarkdown(view, arguments[0]); return view.innerHTML"
    for text, want in _CASES.items():
        got = browser.run(shown, text)
        check(got == want, f"{text!r} is {got}")
    grown = browser.run("const view = document.createElement('div'); showMarkdown(view, 'a\\n\\nb');"
                        "const first = view.firstChild; showMarkdown(view, 'a\\n\\nb c');"
                        "return first === view.firstChild && view.textContent === 'ab c'")
    check(grown, "what is shown already stays while text is added")
    for text in _HOSTILE:
        took = browser.run("const begin = performance.now(), view = document.createElement('div');"
                           "showMarkdown(view, arguments[0]); return performance.now() - begin", text)
        check(took < 3000, f"{text[:12]!r}... of {len(text)} takes {took:.0f} ms")


def _check_colours(browser):
    for scheme in ("light", "dark"):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        ratio, where = browser.run(_CONTRAST)
        check(ratio >= 4.5, f"{scheme}: text has a contrast of {ratio:.1f} at least ({where})")


def check_page(browser, address, screenshots):
    """With a model that has a chat template. screenshots: a folder, or None."""
    for name, width, height, phone in (("phone", 390, 844, True), ("desk", 1280, 800, False)):
        _open(browser, address, width, height, phone)
        _check_layout(browser, (width, height))
        _check_text_is_text(browser)
        for scheme in ("dark", "light") if screenshots else ():
            browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.screenshot(screenshots / f"{name}-{scheme}.png")
        _check_scroll(browser)
        if screenshots:
            browser.screenshot(screenshots / f"{name}-error.png")
        _check_stop_and_again(browser)
        _check_colours(browser)
        if screenshots:
            browser.run("document.getElementById('settings').open = true")
            browser.screenshot(screenshots / f"{name}-settings.png")
            browser.run("document.getElementById('settings').open = false")
        if not phone:
            _check_keyboard(browser)
    _check_markdown(browser)
