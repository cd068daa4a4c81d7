#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chat page in a real browser, headless: chat_page_test.py STOCH_BINARY [SCREENSHOT.png].

Drives Chromium by its WebDriver (Debian: chromium, chromium-driver). Exit code 77, which ctest shows as skipped, where
they are not installed.
"""

import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = "Once upon a time"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that WebDriver gives elements


def fail(what):
    sys.exit(f"failed: {what}")


def check(condition, what):
    if not condition:
        fail(what)
    print(f"ok: {what}")


def eventually(condition, what, limit_s=30):
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            fail(f"{what} (not within {limit_s} s)")
        time.sleep(0.02)
    print(f"ok: {what}")
    return value


class Browser:
    def __init__(self, driver_url):
        self.url = driver_url
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--no-proxy-server", "--window-size=900,700"]
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.url += "/session/" + session["sessionId"]

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def _post(self, path, body):
        return self._call("POST", path, body)

    def open(self, url):
        self._post("/url", {"url": url})

    def find(self, css):
        return self._post("/element", {"using": "css selector", "value": css})[ELEMENT]

    def text(self, css):
        return self.run(f"return Array.from(document.querySelectorAll({json.dumps(css)})).map(e => e.textContent).join('|')")

    def type(self, css, text):
        self._post(f"/element/{self.find(css)}/value", {"text": text})

    def click(self, css):
        self._post(f"/element/{self.find(css)}/click", {})

    def enabled(self, css):
        return self._call("GET", f"/element/{self.find(css)}/enabled")

    def run(self, script):
        return self._post("/execute/sync", {"script": script, "args": []})

    def errors(self):
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self):
        self._call("DELETE", "")


@contextlib.contextmanager
def process(*command, log):
    with open(log, "w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(timeout=30)


def wait_for(log, mark):
    """What the log says behind the mark, on its line."""
    deadline = time.monotonic() + 60
    while mark not in (text := log.read_text()) or "\n" not in text.split(mark, 1)[1]:
        if time.monotonic() > deadline:
            fail(f"no {mark!r} in {text}")
        time.sleep(0.05)
    return text.split(mark, 1)[1].splitlines()[0]


def endless_demo(folder):
    """A copy of the demo model that never ends an answer by itself: what is watched while it runs must not be over by chance."""
    shutil.copytree(ROOT / "demo", folder)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 0}))  # <unk>
    return folder


def offline(stoch, prompt, tokens):
    command = [stoch, "generate", "--model", ROOT / "demo", "--device", "cpu", "--prompt", prompt, "--max-tokens",
               str(tokens), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["text"]


def answer_text(browser):
    """Of the last answer, without its speed."""
    return browser.run("const turns = document.querySelectorAll('.assistant');"
                       "return turns.length ? Array.from(turns[turns.length - 1].childNodes)"
                       ".filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data).join('') : ''")


def set_fields(browser, temperature, tokens):
    browser.run(f"temperature.value = {temperature}; tokens.value = {tokens};")


def check_completion(browser, stoch):
    eventually(lambda: "demo" in browser.text("#facts"), "the page names the model")
    facts = browser.text("#facts")
    check("sc" in facts and "preset=halved" in facts and "cpu" in facts, f"and its arithmetic and device: {facts}")
    set_fields(browser, 0, 40)
    browser.type("#input", PROMPT)
    browser.click("#send")
    eventually(lambda: not browser.enabled("#stop") and browser.text(".assistant .speed"), "an answer comes")
    check(browser.text(".user") == PROMPT, "below what was asked")
    answer = answer_text(browser)
    check(answer == offline(stoch, PROMPT, 40), f"and is that of stoch generate: {answer!r}")
    check(browser.text(".speed").startswith("40 tokens · ") and "tokens/s" in browser.text(".speed"),
          f"with its speed: {browser.text('.speed')}")


def check_stop(browser):
    browser.click("#clear")
    check(browser.text(".turn") == "", "New clears the page")
    set_fields(browser, 0.7, 500)
    browser.type("#input", PROMPT)
    browser.click("#send")
    # Text that grows while it is watched: it is streamed.
    first = eventually(lambda: answer_text(browser), "text comes")
    # In one step: the answer takes less than a second, and two questions over a loaded machine's wire as long.
    check(browser.run("const [stop, send] = ['stop', 'send'].map((id) => document.getElementById(id));"
                      "const can = !stop.disabled && send.disabled; stop.click(); return can;"),
          "Stop can be pressed, Send cannot")
    eventually(lambda: browser.enabled("#send"), "and ends it")
    check(answer_text(browser).startswith(first) and browser.text(".failed") == "", "with what had come")


def check_chat(browser):
    eventually(lambda: "demo" in browser.text("#facts"), "the page of a model with a chat format")
    set_fields(browser, 0, 12)
    for turn in (1, 2):
        browser.run("input.value = 'Tell me a story'")
        browser.type("#input", "\ue007")  # Enter sends
        eventually(lambda: browser.enabled("#send") and len(browser.text(".assistant .speed").split("|")) == turn
                   and all(browser.text(".assistant .speed").split("|")), f"turn {turn} is answered")
    check(browser.text(".failed") == "", "nothing failed")
    browser.run("input.value = ' '")
    browser.click("#send")
    check(len(browser.text(".user").split("|")) == 2, "an empty message is not sent")
    # A conversation that was left in the midst of an answer is no part of the next one.
    set_fields(browser, 0, 400)  # a drawn answer may be empty
    browser.run("input.value = 'Tell me a story'")
    browser.click("#send")
    eventually(lambda: answer_text(browser), "an answer begins")
    browser.click("#clear")
    eventually(lambda: browser.enabled("#send"), "and is left")
    set_fields(browser, 0, 12)
    browser.run("input.value = 'Tell me a story'")
    browser.click("#send")
    eventually(lambda: browser.enabled("#send") and browser.text(".assistant .speed"), "a new conversation is answered")
    check(browser.text(".failed") == "", "from its beginning")


def main(stoch, screenshot=None):
    missing = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
    if missing:
        print("skipped: not installed: " + ", ".join(missing))
        sys.exit(77)
    os.environ["no_proxy"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running:
        folder = pathlib.Path(scratch)
        plain = endless_demo(folder / "plain/demo")
        (plain / "chat_template.jinja").unlink()
        chat = endless_demo(folder / "chat/demo")
        (chat / "chat_template.jinja").unlink()
        shutil.copy(ROOT / "tests/serve/clients/chat_tokenizer_config.json", chat / "tokenizer_config.json")
        addresses = []
        for name, model in (("plain", plain), ("chat", chat)):
            log = folder / f"{name}.log"
            running.enter_context(process(stoch, "serve", "--model", model, "--device", "cpu", "--port", "0", log=log))
            wait_for(log, " ready ")
            addresses.append(wait_for(log, "listening on "))
        driver = folder / "driver.log"
        running.enter_context(process("chromedriver", "--port=0", log=driver))
        port = wait_for(driver, "started successfully on port ").rstrip(".")
        browser = Browser(f"http://127.0.0.1:{port}")
        running.callback(browser.close)
        browser.open(addresses[0])
        check_completion(browser, stoch)
        if screenshot:
            browser.screenshot(screenshot)
        check_stop(browser)
        browser.open(addresses[1])
        check_chat(browser)
        check(browser.errors() == [], "the console shows no errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
