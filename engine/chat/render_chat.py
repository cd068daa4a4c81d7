#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates with jinja2, as transformers does, in a process that can do nothing else.

A template is code that came with a model, so this process is locked before it reads one: seccomp lets it read standard
input, write standard output, and ask for memory and the time; limits bound its memory and its CPU time. Who starts it
kills it where one answer takes too long.

Frames on standard input and output: four bytes of length, the lowest first, then as many of JSON in UTF-8. The first one
it writes is {"ready": true, "jinja2": VERSION} or {"error": WHY}. Then one answer for every request, in order:
    {"template": SOURCE}          {"ok": true}: later requests render this one
    {"messages": [...], ...}      {"text": RENDERED}; further keys: "tools", "documents", "add_generation_prompt",
                                  "continue_final_message", "kwargs" (variables of the template), "now" (seconds since
                                  1970, in UTC for strftime_now)
An answer {"error": WHY, "raised": true} is the template's own raise_exception.

Source: transformers 5.24.0, utils/chat_template_utils.py; what 4.57.6 does otherwise is nothing that a template shows.
    render_chat.py [--unsafe-templates]
"""
import ctypes
import datetime
import json
import os
import resource
import signal
import struct
import sys

# Whatever jinja2 imports when it is needed, since nothing can be opened later.
import linecache  # noqa: F401
import pprint  # noqa: F401
import random
import traceback  # noqa: F401

import jinja2
import jinja2.constants  # noqa: F401
import jinja2.debug  # noqa: F401
import jinja2.ext
import jinja2.sandbox

MAX_FRAME_BYTES = 32 << 20
MAX_TEXT = 8 << 20
MAX_MEMORY_BYTES = 256 << 20
MAX_CPU_SECONDS = 3600  # of the whole life
MAX_SECONDS = 3  # of a processor, of one answer, where nobody kills this process earlier
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

# ------------------------------------------------------------------------------------------------------- templates ----


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the assistant said, for training; the text is that of the body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class PlainDict:
    """`dict` without the attributes of a class."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class PlainNamespace(jinja2.utils.Namespace):
    """`namespace` whose attributes are no internals of Python."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            PlainNamespace.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        PlainNamespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")


class Raised(jinja2.exceptions.TemplateError):
    """The template refuses the conversation."""


def raise_exception(message):
    raise Raised(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Renderer:
    def __init__(self):
        self.template = None
        self.now = 0
        self.environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        self.environment.filters["tojson"] = tojson
        self.environment.globals.update(raise_exception=raise_exception, strftime_now=self.strftime_now, dict=PlainDict(),
                                        namespace=PlainNamespace)

    def strftime_now(self, form):
        return datetime.datetime.fromtimestamp(self.now, datetime.timezone.utc).replace(tzinfo=None).strftime(form)

    def load(self, source):
        self.template = self.environment.from_string(source)
        self.source = source

    def render(self, request):
        """The text of one conversation. Errors: whatever jinja2 and the template raise; ValueError."""
        if self.template is None:
            raise ValueError("no template was given")
        messages = [plain_message(message) for message in request["messages"]]
        field = request.get("continue_final_message") and "content"
        final = mark_final(messages, field, self.source) if field else None
        self.now = request.get("now", 0)
        random.seed(0)  # of `random` and `lipsum`: the same request has the same text
        text = self.template.render(**{
            **request.get("kwargs", {}), "messages": messages, "tools": request.get("tools"),
            "documents": request.get("documents"), "add_generation_prompt": bool(request.get("add_generation_prompt"))})
        return cut_after_final(text, final) if field else text


def plain_message(message):
    """Without keys that are null, and reasoning under every name that templates read."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING_FIELDS if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def mark_final(messages, field, source):
    """Marks the end of the last message, which the answer goes on with. Returns that message's text."""
    if not messages or field not in messages[-1]:
        raise ValueError("continue_final_message: the last message has no content to go on with")
    if field not in source:
        raise ValueError("continue_final_message: the template does not write the content of messages")
    content = messages[-1][field]
    if isinstance(content, str):
        messages[-1][field] = content + CONTINUE_TAG
        return content
    for i in reversed(range(len(content))):
        if "text" in content[i]:
            final = content[i]["text"]
            messages[-1][field] = [*content[:i], {**content[i], "text": final + CONTINUE_TAG}, *content[i + 1:]]
            return final
    raise ValueError("continue_final_message: the last message has no text to go on with")


def cut_after_final(text, final):
    tag = CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise ValueError("continue_final_message: the template does not write the last message as it is")
    at = text.rindex(tag)
    if text[at:at + len(CONTINUE_TAG)] == CONTINUE_TAG:
        return text[:at]
    return text[:at].rstrip()  # the template strips messages


def one_line(error):
    return " ".join(str(error).split())[:500] or type(error).__name__


def answer(renderer, request):
    try:
        if "template" in request:
            renderer.load(request["template"])
            return {"ok": True}
        text = renderer.render(request)
        if len(text) > MAX_TEXT:
            return {"error": f"the template makes more than {MAX_TEXT} characters"}
        return {"text": text}
    except Raised as error:
        return {"error": one_line(error), "raised": True}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {one_line(error.message)}"}
    except jinja2.exceptions.TemplateError as error:
        return {"error": one_line(error)}
    except (RecursionError, MemoryError) as error:
        return {"error": f"the template asks for too much: {type(error).__name__}"}
    except Exception as error:  # a template can raise whatever an operation of Python raises
        return {"error": f"{type(error).__name__}: {one_line(error)}"}


# ---------------------------------------------------------------------------------------------------------- frames ----


def read_exactly(count):
    data = bytearray()
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def read_frame():
    head = read_exactly(4)
    if head is None:
        return None
    size = struct.unpack("<I", head)[0]
    if size > MAX_FRAME_BYTES:
        raise SystemExit(f"render_chat: a frame of {size} bytes")
    body = read_exactly(size)
    return None if body is None else json.loads(body)


def write_frame(value):
    try:
        body = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        body = json.dumps({"error": "the template writes text that is no Unicode"}).encode()
    data = memoryview(struct.pack("<I", len(body)) + body)
    while data:
        data = data[os.write(1, data):]


# ---------------------------------------------------------------------------------------------------- the locked box ----

# Calls that are allowed with any argument. Everything else fails with EPERM, files, sockets and processes among it.
ALLOWED = """brk munmap mremap madvise futex clock_gettime clock_getres clock_nanosleep gettimeofday time nanosleep getrandom
    setitimer rt_sigreturn rt_sigaction rt_sigprocmask sigaltstack sched_yield restart_syscall exit exit_group getpid gettid
    """.split()
SCMP_ACT_ALLOW = 0x7FFF0000
SCMP_ACT_ERRNO_EPERM = 0x00050000 | 1
SCMP_CMP_EQ, SCMP_CMP_MASKED_EQ = 4, 7
PROT_EXEC = 4
PR_SET_DUMPABLE = 4


class ArgCmp(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def limit():
    for kind, most in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
                       (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 0),
                       (resource.RLIMIT_NPROC, 0)):
        resource.setrlimit(kind, (most, most))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine(seccomp):
    """Errors: OSError where the system does not allow it."""
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_init.argtypes = [ctypes.c_uint32]
    seccomp.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint,
                                               ctypes.POINTER(ArgCmp)]
    seccomp.seccomp_load.argtypes = [ctypes.c_void_p]
    context = seccomp.seccomp_init(SCMP_ACT_ERRNO_EPERM)
    if not context:
        raise OSError("seccomp_init failed")

    def allow(name, *conditions):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return  # this architecture has no such call
        rules = (ArgCmp * max(1, len(conditions)))(*conditions)
        result = seccomp.seccomp_rule_add_array(context, SCMP_ACT_ALLOW, number, len(conditions), rules)
        if result != 0:
            raise OSError(-result, f"seccomp rule of {name}: {os.strerror(-result)}")

    for name in ALLOWED:
        allow(name)
    allow("read", ArgCmp(0, SCMP_CMP_EQ, 0, 0))
    allow("write", ArgCmp(0, SCMP_CMP_EQ, 1, 0))
    allow("mmap", ArgCmp(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0), ArgCmp(4, SCMP_CMP_EQ, 0xFFFFFFFF, 0))
    allow("mmap", ArgCmp(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0), ArgCmp(4, SCMP_CMP_EQ, 0xFFFFFFFFFFFFFFFF, 0))
    allow("mprotect", ArgCmp(2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0))
    result = seccomp.seccomp_load(context)
    if result != 0:
        raise OSError(-result, f"seccomp_load: {os.strerror(-result)}")


def warm_up(renderer):
    """Runs what imports or allocates at its first use: an answer, an error inside of a template, a date."""
    renderer.load("{% for m in messages %}{{ m.content | trim | tojson | upper }}{{ strftime_now('%d %b %Y') }}{% endfor %}"
                  "{{ nothing.at.all }}")
    answer(renderer, {"messages": [{"role": "user", "content": "a"}]})
    renderer.template = None


def main():
    unsafe = sys.argv[1:] == ["--unsafe-templates"]
    renderer = Renderer()
    warm_up(renderer)
    try:
        seccomp = None if unsafe else ctypes.CDLL("libseccomp.so.2")
        limit()
        if seccomp:
            confine(seccomp)
    except OSError as error:
        write_frame({"error": f"chat templates cannot be confined here: {one_line(error)}"})
        return
    write_frame({"ready": True, "jinja2": jinja2.__version__})
    while (request := read_frame()) is not None:
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # ends the process
        result = answer(renderer, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(result)


if __name__ == "__main__":
    main()
