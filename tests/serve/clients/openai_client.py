#!/usr/bin/env python3
"""The official openai client against a running server of the demo model: openai_client.py BASE_URL."""

import sys

import openai

PROMPT = "Once upon a time"


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")
    print(f"ok: {what}")


def refused(call):
    """The API error that call() raises."""
    try:
        call()
    except openai.APIStatusError as error:
        return error
    return None


def main(base_url):
    client = openai.OpenAI(base_url=base_url + "/v1", api_key="EMPTY", max_retries=0)
    model = client.models.list().data[0].id
    check(model == "demo", "models.list names the demo model")

    def complete(**more):
        return client.completions.create(**{"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **more})

    whole = complete()
    text = whole.choices[0].text
    check(len(text) > 20 and whole.usage.completion_tokens == 24, "completion with usage")
    check(whole.choices[0].finish_reason == "length", "finish_reason length")
    check(complete().choices[0].text == text, "the same again")

    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    check(streamed == text and chunks[-1].usage == whole.usage, "streaming gives the same text and usage")

    batch = complete(prompt=[PROMPT, "The cat"], n=2, temperature=1, seed=5)
    check([choice.index for choice in batch.choices] == [0, 1, 2, 3], "choices of a batch with n = 2")
    check(batch.choices[0].text != batch.choices[1].text, "choices of one prompt differ")
    check(complete(n=2, temperature=1, seed=5).choices[1].text == batch.choices[1].text, "and are the same alone")

    stop = text[8:12]
    check(complete(stop=[stop]).choices[0].text == text[: text.index(stop)], "stop sequence")

    logprobs = complete(logprobs=3, echo=True).choices[0].logprobs
    check(len(logprobs.tokens) == len(logprobs.token_logprobs) == whole.usage.total_tokens, "echoed logprobs")
    check(logprobs.token_logprobs[0] is None and all(len(top) >= 3 for top in logprobs.top_logprobs[1:]), "top_logprobs")

    error = refused(lambda: complete(temperature=-1))
    check(isinstance(error, openai.BadRequestError) and error.param == "temperature", "bad value: 400 with param")
    error = refused(lambda: complete(model="other"))
    check(isinstance(error, openai.NotFoundError), "unknown model: 404")
    # The demo model has no chat format, and says so.
    error = refused(lambda: client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}]))
    check(isinstance(error, openai.BadRequestError) and "chat template" in error.message, "no chat format: 400")


if __name__ == "__main__":
    main(sys.argv[1])
