# SPDX-License-Identifier: Apache-2.0
"""Completions of a server: whole, streamed, and left before their end."""

import json
import time


def parse_tokens(choice):
    """Tokens with their logprobs, as they were printed: what must be the same whoever else is served."""
    logprobs = choice["logprobs"]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"]))


def whole(server, body):
    status, text = server.call("POST", "/v1/completions", json.dumps(body))
    if status != 200:
        raise RuntimeError(f"{status}: {text}")
    return json.loads(text)


def stream(connection, body, leave_after=None):
    """(tokens, arrival times, complete) of a streamed completion; leaves after so many events where told."""
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read().decode()}")
    tokens, times = [], []
    while line := answer.readline():
        if not line.startswith(b"data: "):
            continue
        if line == b"data: [DONE]\n":
            answer.read()
            return tokens, times, True
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        for choice in event["choices"]:
            tokens += parse_tokens(choice)
        times.append(time.monotonic())
        if leave_after is not None and len(times) >= leave_after:
            return tokens, times, False
    raise RuntimeError("the stream ended without [DONE]")
