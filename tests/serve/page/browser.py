# SPDX-License-Identifier: Apache-2.0
"""Chromium, headless, by its WebDriver, and what tests of a page say of it."""

import base64
import json
import pathlib
import shutil
import sys
import time
import urllib.request

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that WebDriver gives elements


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
        with urllib.request.urlopen(request, timeout=180) as answer:
            return json.load(answer)["value"]

    def _post(self, path, body):
        return self._call("POST", path, body)

    def open(self, url):
        self._post("/url", {"url": url})

    def find(self, css):
        return self._post("/element", {"using": "css selector", "value": css})[_ELEMENT]

    def text(self, css):
        return self.run(f"return Array.from(document.querySelectorAll({json.dumps(css)})).map(e => e.textContent).join('|')")

    def type(self, css, text):
        self._post(f"/element/{self.find(css)}/value", {"text": text})

    def press(self, keys):
        """On what has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, css):
        self._post(f"/element/{self.find(css)}/click", {})

    def shown(self, css):
        return self.run(f"return document.querySelector({json.dumps(css)})?.checkVisibility() ?? false")

    def run(self, script, *arguments):
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command, **parameters):
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def errors(self):
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self):
        self._call("DELETE", "")
