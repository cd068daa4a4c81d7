#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official openai client against a running server: openai_client.py BASE_URL STOCH MODEL.

MODEL is the demo model with the chat template of Llama 2; the binary STOCH says what it gives offline.
"""

import sys

import openai

from offline import Offline

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


def check_completions(client, model, offline):
    def complete(**more):
        return client.completions.create(**{"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **more})

    alone = offline.generate(PROMPT, 24, "--top-logprobs", "3")
    whole = complete()
    text = whole.choices[0].text
    check(text == alone["text"] and whole.usage.completion_tokens == 24, "completion is that of stoch generate")
    check(whole.choices[0].finish_reason == alone["finish_reason"], "finish_reason")

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
    check(logprobs.token_logprobs[-24:] == alone["logprobs"], "logprobs are those of stoch generate, every bit")
    check(logprobs.token_logprobs[0] is None and all(len(top) >= 3 for top in logprobs.top_logprobs[1:]), "top_logprobs")


def check_chat(client, model, offline):
    def chat(**more):
        messages = [{"role": "user", "content": "Tell me a story"}]
        return client.chat.completions.create(
            **{"model": model, "messages": messages, "max_tokens": 24, "temperature": 0, **more})

    alone = offline.generate("[INST] Tell me a story [/INST]", 24)
    whole = chat(logprobs=True, top_logprobs=2)
    message = whole.choices[0].message
    check(message.role == "assistant" and message.content == alone["text"], "chat is stoch generate on the template")
    content = whole.choices[0].logprobs.content
    check([token.logprob for token in content] == alone["logprobs"], "chat logprobs, every bit")
    check(all(len(token.top_logprobs) == 2 for token in content), "chat top_logprobs")
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(stream=True))
    check(streamed == message.content, "streaming gives the same chat")
    stop = message.content[5:9]
    stopped = chat(stop=stop).choices[0]
    check(stopped.message.content == message.content[: message.content.index(stop)], "stop sequence in a chat")
    check(stopped.finish_reason == "stop", "which is its finish_reason")


def check_errors(client, model):
    def complete(**more):
        return lambda: client.completions.create(**{"model": model, "prompt": PROMPT, **more})

    error = refused(complete(temperature=-1))
    check(isinstance(error, openai.BadRequestError) and error.param == "temperature", "bad value: 400 with param")
    error = refused(complete(prompt=[1, 2, 10**6]))
    check(isinstance(error, openai.BadRequestError) and error.param == "prompt[2]", "no such token: 400 with index")
    check(isinstance(refused(complete(model="other")), openai.NotFoundError), "unknown model: 404")
    error = refused(lambda: client.chat.completions.create(model=model, messages=[{"role": "", "content": "Hi"}]))
    check(isinstance(error, openai.BadRequestError) and "messages[0].role" in error.message, "no role: 400")
    error = refused(lambda: client.embeddings.create(model=model, input="Hi"))
    check(isinstance(error, openai.NotFoundError), "what is not there: 404")


def main(base_url, stoch, model):
    client = openai.OpenAI(base_url=base_url + "/v1", api_key="EMPTY", max_retries=0)
    offline = Offline(stoch, model)
    served = client.models.list().data[0].id
    check(served == "demo", "models.list names the demo model")
    check_completions(client, served, offline)
    check_chat(client, served, offline)
    check_errors(client, served)


if __name__ == "__main__":
    main(*sys.argv[1:])
