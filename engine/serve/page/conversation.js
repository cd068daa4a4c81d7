// SPDX-License-Identifier: Apache-2.0
// The conversation: asks the server, shows answers while they come, and keeps what is asked next. What is kept are exchanges
// of a question and its answer; one without an answer, as after a failure, is not sent again.

const $ = id => document.getElementById(id);
const kEndSlack_px = 40;  // so near to the end of the conversation is at its end
let model = null, chat = false, exchanges = [], running = null, following = true;

// The server's key, where it asks for one; kept while the tab is open.
const headers = more => $("key").value ? {...more, Authorization: "Bearer " + $("key").value} : more;

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  if (response.status === 401) $("settings").open = true;
  throw new Error(body?.error?.message ?? `the server answered ${response.status} ${response.statusText}`);
}

const sentence = error => error instanceof TypeError ? "no connection to the server" : error.message;

async function connect() {
  try {
    const models = await (await checked(await fetch("v1/models", {headers: headers({})}))).json();
    const info = await fetch("tokenizer_info", {headers: headers({})});
    // A model without a chat template continues what is written.
    chat = info.ok && (await info.json()).chat_template_sha256 !== null;
    model = models.data[0];
  } catch (error) {
    $("facts").textContent = "not connected: " + sentence(error);
    return;
  }
  document.title = `${model.id} · stoch`;
  $("facts").textContent = [model.id, model.precision, model.sc, model.device].filter(Boolean).join(" · ");
  $("facts").title = $("facts").textContent;
  $("input").placeholder = chat ? "Message" : "Text to continue (this model has no chat template)";
  $("system_field").hidden = !chat;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Error("the connection was closed in the midst of the answer");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      // Besides the data an event has an id; a comment keeps the connection open.
      const data = part.split("\n").find(line => line.startsWith("data: "))?.slice(6);
      if (data === undefined) continue;
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function follow() {
  if (following) $("log").scrollTop = $("log").scrollHeight;
  $("latest").hidden = following;
}

// What a model thinks first, in <think>: templates may have written the opening tag into the prompt already.
function split(text) {
  const open = /^\s*<think>\n?/.exec(text)?.[0].length ?? 0;
  const close = (open ? /<\/think>\s*/ : /^<\/think>\s*/m).exec(text.slice(open));
  if (!close) return open ? {thought: text.slice(open), said: ""} : {thought: "", said: text};
  const end = open + close.index;
  return {thought: text.slice(open, end), said: text.slice(end + close[0].length)};
}

// An answer on the page.
class AnswerView {
  constructor(exchange) {
    this.thought = element("div");
    this.summary = element("summary", "Thinking…");
    this.think = element("details", this.summary, this.thought);
    this.think.className = "think";
    this.think.hidden = true;
    this.text = element("div");
    this.text.className = chat ? "text" : "text plain_text";
    this.error = element("p");
    this.error.className = "error";
    this.error.setAttribute("role", "alert");
    this.error.hidden = true;
    this.speed = element("span");
    this.speed.className = "speed";
    this.mark = element("span");
    this.mark.className = "mark";
    this.copy = button("Copy", "Copy the answer", event => copy(exchange.said, event.currentTarget));
    this.again = button("Regenerate", "Regenerate the answer", () => ask(exchange));
    this.below = element("footer", this.speed, this.mark, this.copy, this.again);
    this.below.className = "below";
    this.copy.hidden = this.again.hidden = true;
    this.element = element("article", this.think, this.text, this.error, this.below);
    this.element.className = "turn assistant";
    this.element.setAttribute("aria-label", "Answer");
    this.waiting = 0;
  }

  // Soon, and once for all that has come until then.
  show(thought, said) {
    this.latest = [thought, said];
    this.waiting ||= requestAnimationFrame(() => this.showNow());
  }

  showNow() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const [thought, said] = this.latest ?? ["", ""];
    this.think.hidden = thought.trim() === "";
    if (this.thought.textContent !== thought) this.thought.textContent = thought;
    this.summary.textContent = said ? "Thought" : "Thinking…";
    if (chat) showMarkdown(this.text, said); else this.text.textContent = said;
    follow();
  }

  end(mark, error) {
    this.showNow();
    this.mark.textContent = mark;
    this.error.textContent = error;
    this.error.hidden = !error;
    this.copy.hidden = !this.text.textContent;
    this.again.hidden = false;
    this.summary.textContent = "Thought";
    // An error is shown wherever one reads.
    following ||= error !== "";
    follow();
  }
}

function bodyOf(exchange) {
  const body = {model: model.id, stream: true, stream_options: {include_usage: true}, seed: Math.floor(Math.random() * 2 ** 48)};
  // What is left empty is the server's.
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("tokens").value !== "") body.max_tokens = Number($("tokens").value);
  if (!chat) return {...body, prompt: exchange.question};
  const system = $("system").value.trim();
  const before = exchanges.slice(0, exchanges.indexOf(exchange)).filter(each => each.answered);
  const messages = before.flatMap(each => [{role: "user", content: each.question}, {role: "assistant", content: each.said}]);
  return {...body, messages: [...(system ? [{role: "system", content: system}] : []), ...messages, {role: "user", content: exchange.question}]};
}

// Reads the answer's events into the exchange; why it ended.
async function read(response, exchange, view) {
  let text = "", reasoning = "", first = 0, pieces = 0, reason = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const now = performance.now();
    const choice = event.choices[0];
    if (choice) {
      reasoning += choice.delta?.reasoning_content ?? "";
      text += (chat ? choice.delta.content : choice.text) ?? "";
      reason = choice.finish_reason ?? reason;
      pieces += 1;
      first ||= now;
      const {thought, said} = chat ? split(text) : {thought: "", said: text};
      exchange.said = said;
      view.show(reasoning + thought, said);
    }
    const tokens = event.usage ? event.usage.completion_tokens : pieces;
    if (tokens > 1 && now > first) view.speed.textContent = `${tokens} tokens · ${(1000 * (tokens - 1) / (now - first)).toFixed(1)} tokens/s`;
  }
  return reason;
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  $("log").setAttribute("aria-busy", String(is));
}

// Asks, or asks again, for the answer of an exchange.
async function ask(exchange) {
  if (running) return;
  const view = new AnswerView(exchange);
  for (const each of exchanges) if (each !== exchange && each.view) each.view.again.hidden = true;
  exchange.view?.element.remove();
  Object.assign(exchange, {view, said: "", answered: false});
  $("log").append(view.element);
  following = true;
  follow();
  const mine = running = new AbortController();
  busy(true);
  $("status").textContent = "Answering";
  let mark = "", failure = "";
  try {
    const response = await fetch(chat ? "v1/chat/completions" : "v1/completions",
      {method: "POST", headers: headers({"Content-Type": "application/json"}), body: JSON.stringify(bodyOf(exchange)), signal: mine.signal});
    if (await read(await checked(response), exchange, view) === "length") mark = "cut at the limit of tokens";
    exchange.answered = true;
  } catch (error) {
    if (error.name === "AbortError") {
      mark = "stopped";
      exchange.answered = exchange.said !== "";
    } else {
      failure = sentence(error);
    }
  }
  if (running === mine) {
    running = null;
    busy(false);
  }
  view.end(mark, failure);
  $("status").textContent = failure ? "" : mark || "Answered";
}

async function send() {
  const question = chat ? $("input").value.trim() : $("input").value;
  if (!question || running) return;
  if (!model) await connect();
  if (!model) return;
  $("input").value = "";
  const asked = element("div", question);
  asked.className = "turn user";
  asked.setAttribute("role", "article");
  asked.setAttribute("aria-label", "You");
  $("log").append(asked);
  const exchange = {question, said: "", answered: false, view: null};
  exchanges.push(exchange);
  await ask(exchange);
}

function stop() {
  if (!running) return;
  running.abort();
  $("input").focus();
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", () => {
  running?.abort();
  running = null;
  busy(false);
  exchanges = [];
  $("log").replaceChildren();
  following = true;
  follow();
  $("input").focus();
});
$("input").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
});
document.addEventListener("keydown", event => { if (event.key === "Escape") stop(); });
// A setting is not a message.
$("fields").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.target.localName !== "input") return;
  event.preventDefault();
  event.target.dispatchEvent(new Event("change"));
});
$("log").addEventListener("scroll", () => {
  const log = $("log");
  following = log.scrollHeight - log.scrollTop - log.clientHeight < kEndSlack_px;
  $("latest").hidden = following;
});
$("latest").addEventListener("click", () => {
  following = true;
  follow();
});
// The keyboard of a phone, or the settings, take room from the conversation.
new ResizeObserver(follow).observe($("log"));

for (const [id, storage] of [["key", sessionStorage], ["temperature", localStorage], ["tokens", localStorage], ["system", localStorage]]) {
  $(id).value = storage.getItem(id) ?? $(id).value;
  $(id).addEventListener("change", () => storage.setItem(id, $(id).value));
}
$("key").addEventListener("change", connect);
if (matchMedia("(pointer: fine)").matches) $("input").focus();
connect();
