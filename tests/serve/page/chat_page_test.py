#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chat page in a real browser, headless: chat_page_test.py STOCH_BINARY [FOLDER_FOR_SCREENSHOTS].

Drives Chromium by its WebDriver (Debian: chromium, chromium-driver). Exit code 77, which ctest shows as skipped, where
they are not installed.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from browser import Browser, check, eventually, fail
from scripted import check_page

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROMPT = "Once upon a time"


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
    return browser.run("return [...document.querySelectorAll('.assistant .text')].at(-1)?.textContent ?? ''")


def set_fields(browser, temperature, tokens):
    browser.run("temperature.value = arguments[0]; tokens.value = arguments[1]", temperature, tokens)


def check_completion(browser, stoch):
    eventually(lambda: "demo" in browser.text("#facts"), "the page names the model")
    facts = browser.text("#facts")
    check("sc" in facts and "preset=halved" in facts and "cpu" in facts, f"and its arithmetic and device: {facts}")
    set_fields(browser, 0, 40)
    browser.type("#input", PROMPT)
    browser.click("#send")
    eventually(lambda: not browser.shown("#stop") and browser.text(".assistant .speed"), "an answer comes")
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
                      "const can = stop.checkVisibility() && !send.checkVisibility(); stop.click(); return can;"),
          "Stop can be pressed, Send cannot")
    eventually(lambda: browser.shown("#send"), "and ends it")
    check(answer_text(browser).startswith(first) and browser.text(".error:not([hidden])") == "", "with what had come")
    eventually(lambda: browser.text(".mark") == "stopped", "which is marked")


def check_chat(browser):
    eventually(lambda: "demo" in browser.text("#facts"), "the page of a model with a chat format")
    set_fields(browser, 0, 12)
    for turn in (1, 2):
        browser.run("input.value = 'Tell me a story'")
        browser.type("#input", "\ue007")  # Enter sends
        eventually(lambda: browser.shown("#send") and len(browser.text(".assistant .speed").split("|")) == turn
                   and all(browser.text(".assistant .speed").split("|")), f"turn {turn} is answered")
    check(browser.text(".error:not([hidden])") == "", "nothing failed")
    browser.run("input.value = ' '")
    browser.click("#send")
    check(len(browser.text(".user").split("|")) == 2, "an empty message is not sent")
    # A conversation that was left in the midst of an answer is no part of the next one.
    set_fields(browser, 0, 400)  # a drawn answer may be empty
    browser.run("input.value = 'Tell me a story'")
    browser.click("#send")
    eventually(lambda: answer_text(browser), "an answer begins")
    browser.click("#clear")
    eventually(lambda: browser.shown("#send"), "and is left")
    set_fields(browser, 0, 12)
    browser.run("input.value = 'Tell me a story'")
    browser.click("#send")
    eventually(lambda: browser.shown("#send") and browser.text(".assistant .speed"), "a new conversation is answered")
    check(browser.text(".error:not([hidden])") == "", "from its beginning")


def main(stoch, screenshots=None):
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
        if screenshots:
            pathlib.Path(screenshots).mkdir(parents=True, exist_ok=True)
            browser.screenshot(pathlib.Path(screenshots) / "completion.png")
        check_stop(browser)
        browser.open(addresses[1])
        check_chat(browser)
        check_page(browser, addresses[1], pathlib.Path(screenshots) if screenshots else None)
        check(browser.errors() == [], "the console shows no errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
