#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The helper that renders chat templates: as transformers (tests/golden/chat_templates.json), in a box, and robust.

    render_chat_test.py [PYTHON]   the interpreter that runs the helper; exit status 77: skipped, it has no jinja2
"""
import json
import pathlib
import signal
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
HELPER = ROOT / "engine" / "chat" / "render_chat.py"
GOLDEN = ROOT / "tests" / "golden" / "chat_templates.json"
PYTHON = sys.argv[1] if len(sys.argv) > 1 else "python3"
# Runs in the process of the helper once it is locked: each must fail with a Python error, and the process must live.
ESCAPES = {
    "open a file": "open('/etc/passwd')",
    "write a file": "open('/tmp/stoch-render-chat-escape', 'w')",
    "list a folder": "__import__('os').listdir('/')",
    "make a socket": "__import__('socket').socket()",
    "start a process": "__import__('os').fork()",
    "run a program": "__import__('os').execv('/bin/true', ['true'])",
    "start a thread": "__import__('_thread').start_new_thread(print, ())",
    "write to standard error": "__import__('os').write(2, b'x')",
    "duplicate a descriptor": "__import__('os').dup(1)",
    "send a signal": "__import__('os').kill(__import__('os').getppid(), 0)",
    "map executable memory": "__import__('mmap').mmap(-1, 4096, prot=7)",
    "take 300 MB": "len(bytearray(300 << 20))",
    "raise a limit": "__import__('resource').setrlimit(__import__('resource').RLIMIT_CPU, (9, 9))",
}
failures = []


def check(good, what):
    if not good:
        failures.append(what)
        print("FAILED:", what)


class Helper:
    def __init__(self, *command):
        command = command or (PYTHON, "-I", str(HELPER))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.first = self.receive()

    def send(self, value):
        body = json.dumps(value).encode()
        self.process.stdin.write(struct.pack("<I", len(body)) + body)
        self.process.stdin.flush()

    def receive(self):
        head = self.process.stdout.read(4)
        return json.loads(self.process.stdout.read(struct.unpack("<I", head)[0])) if len(head) == 4 else None

    def __call__(self, value):
        self.send(value)
        return self.receive()

    def close(self):
        self.process.stdin.close()
        status = self.process.wait(10)
        self.process.stdout.close()
        return status


def check_goldens(helper):
    golden = json.loads(GOLDEN.read_text())
    compared = errors = 0
    for name, template in golden["templates"].items():
        loaded = helper({"template": template["source"]})
        for request, expected in zip(golden["requests"], template["rendered"]):
            request = dict(request, now=golden["now"], kwargs={**golden["special"], **request.get("kwargs", {})})
            got = helper(request) if loaded == {"ok": True} else loaded
            compared += 1
            errors += expected is None
            if expected is None:
                check("error" in got, f"{name}: an error, as transformers has, got {got}")
            else:
                check(got.get("text") == expected, f"{name}: {request}\n  got      {got}\n  expected {expected!r}")
    check(compared - errors > 200, f"only {compared - errors} texts compared")
    print(f"{compared} compared, {errors} of them errors, {len(golden['templates'])} templates")


def check_errors(helper):
    cases = {
        "{{ raise_exception('only users') }}": ("only users", True),
        "{% for %}": ("line 1: Expected an expression", False),
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": ("asks for too much: RecursionError", False),
        "{{ 'a' * 400000000 }}": ("asks for too much: MemoryError", False),
        "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}": ("more than 8388608 characters", False),
        "{{ '\\ud800' }}": ("no Unicode", False),
        "{{ ().__class__.__bases__ }}": ("unsafe", False),
        "{{ namespace(__init__=1) }}": ("no attribute", False),
        "{% include 'x' %}": ("", False),
    }
    for source, (part, raised) in cases.items():
        got = helper({"template": source})
        if "ok" in got:
            got = helper({"messages": [{"role": "user", "content": "a"}]})
        check(part in got.get("error", "NONE") and got.get("raised", False) == raised, f"{source}: {got}")
        check("\n" not in got.get("error", ""), f"{source}: one line")
    check(helper({"template": "{{ messages[0].content }}"}) == {"ok": True}, "it goes on after errors")
    check(helper({"messages": [{"role": "user", "content": "a"}]}) == {"text": "a"}, "and renders")
    first = [helper({"template": "{{ range(99) | random }}{{ lipsum() }}"}), helper({"messages": []})][1]
    check(first == helper({"messages": []}) and "text" in first, "the same request has the same text")


def check_box():
    code = (f"import sys, runpy, json; m = runpy.run_path({str(HELPER)!r}, run_name='helper'); "
            "import ctypes, os, socket, mmap, _thread; m['warm_up'](m['Renderer']())\n"
            "seccomp = ctypes.CDLL('libseccomp.so.2'); m['limit'](); m['confine'](seccomp); m['write_frame']('locked')\n"
            "while (code := m['read_frame']()) is not None:\n"
            "  try: result = repr(eval(code))\n"
            "  except BaseException as error: result = None\n"
            "  m['write_frame'](result)")
    box = Helper(PYTHON, "-I", "-c", code)
    check(box.first == "locked", "the box is locked")
    check(box("1 + 1") == "2", "what is allowed runs")
    for what, escape in ESCAPES.items():
        got = box(escape)
        check(got is None and box.process.poll() is None, f"{what}: {got}")
    check(not pathlib.Path("/tmp/stoch-render-chat-escape").exists(), "no file was written")
    check(box.close() == 0, "it ends when standard input does")


def check_endless():
    helper = Helper()
    helper({"template": "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"})
    begin = time.monotonic()
    check(helper({"messages": []}) is None and time.monotonic() - begin < 60, "an endless template ends the process")
    check(helper.process.wait(10) == -signal.SIGPROF, "by its own timer")
    helper.process.stdin.close()
    helper.process.stdout.close()


def check_time(helper):
    helper({"template": "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"})
    request = {"messages": [{"role": "user", "content": "Hello, how are you?"}] * 20}
    helper(request)
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        helper(request)
        times.append(time.perf_counter() - begin)
    print(f"a render of 20 messages: {sorted(times)[25] * 1e3:.2f} ms")


def main():
    if subprocess.run([PYTHON, "-I", "-c", "import jinja2"], capture_output=True).returncode != 0:
        print(f"skipped: {PYTHON} has no jinja2")
        return 77
    helper = Helper()
    check(helper.first and helper.first.get("ready"), f"ready, got {helper.first}")
    if failures:
        return 1
    check("error" in helper({"messages": []}), "no template yet")
    check_goldens(helper)
    check_errors(helper)
    check_time(helper)
    check(helper.close() == 0, "it ends when standard input does")
    check_box()
    check_endless()
    print("FAILED" if failures else "passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
