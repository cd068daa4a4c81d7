#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that ask for structured output and tools, against a running server: structured_client.py BASE_URL.

The openai client's parse, LangChain's with_structured_output and bind_tools, LlamaIndex's structured_predict, and LiteLLM by
both of its names for such a server. The model knows no JSON, so what is in the fields is anything; that every answer is of
its type is what is tested.
"""

import asyncio
import enum
import json
import sys

import litellm
import openai
import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike

MESSAGES = [{"role": "user", "content": "Tell me of a cat"}]
ANSWERS = 40


class Kind(str, enum.Enum):
    CAT = "cat"
    DOG = "dog"


class Toy(pydantic.BaseModel):
    colour: Kind
    size: int = pydantic.Field(ge=1, le=99)


class Animal(pydantic.BaseModel):
    """An animal of a story."""

    z_kind: Kind
    age: int = pydantic.Field(ge=0, le=30)
    toys: list[Toy] = pydantic.Field(max_length=2)
    is_kind: bool


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")
    print(f"ok: {what}")


@tool
def weather(city: Kind, days: int) -> str:
    """The weather of a city."""
    return f"{city} {days}"


def check_openai(client, model):
    options = {"model": model, "messages": MESSAGES, "temperature": 1, "max_tokens": 300}
    parsed = [client.chat.completions.parse(**options, response_format=Animal, seed=seed).choices[0].message.parsed
              for seed in range(ANSWERS)]
    check(all(isinstance(each, Animal) for each in parsed), f"openai: parse gives {ANSWERS} objects of the type")
    check(len({each.model_dump_json() for each in parsed}) > ANSWERS // 2, "openai: which differ")

    with client.chat.completions.stream(**options, response_format=Animal, seed=1) as stream:
        final = stream.get_final_completion()
    check(final.choices[0].message.parsed == parsed[1], "openai: a stream gives the same object")
    several = client.chat.completions.parse(**options, response_format=Animal, seed=1, n=3)
    check(several.choices[0].message.parsed == parsed[1] and len(several.choices) == 3, "openai: and so does n = 3")
    text = client.chat.completions.create(**options, response_format={"type": "json_object"}, seed=1).choices[0]
    check(text.finish_reason == "length" or isinstance(json.loads(text.message.content), dict), "openai: json_object")
    choice = client.completions.create(model=model, prompt="Once", max_tokens=9, extra_body={"guided_choice": ["yes", "no"]})
    check(choice.choices[0].text in ("yes", "no"), "openai: guided_choice")

    tools = [openai.pydantic_function_tool(Animal)]
    named = {"type": "function", "function": {"name": "Animal"}}
    message = client.chat.completions.parse(**options, tools=tools, tool_choice=named, seed=2).choices[0].message
    check(isinstance(message.tool_calls[0].function.parsed_arguments, Animal), "openai: a call of a named tool is parsed")
    with client.chat.completions.stream(**options, tools=tools, tool_choice=named, seed=2) as stream:
        streamed = stream.get_final_completion().choices[0].message
    check(streamed.tool_calls[0].function.parsed_arguments == message.tool_calls[0].function.parsed_arguments
          and streamed.tool_calls[0].id.startswith("call_"), "openai: and the same in a stream")
    try:
        client.completions.create(model=model, prompt="Once", extra_body={"guided_regex": "(a"})
        check(False, "openai: a bad regular expression is refused")
    except openai.BadRequestError as error:
        check(error.param == "guided_regex", "openai: a bad regular expression is refused by name")


def check_langchain(base_url, model):
    chat = ChatOpenAI(model=model, base_url=base_url + "/v1", api_key="EMPTY", temperature=1, max_tokens=300, seed=3)
    for method in ("json_schema", "function_calling"):
        answer = chat.with_structured_output(Animal, method=method).invoke("Tell me of a cat")
        check(isinstance(answer, Animal), f"langchain: with_structured_output, {method}")
    call = chat.bind_tools([weather], tool_choice="weather").invoke("Is it raining?").tool_calls
    check(len(call) == 1 and call[0]["name"] == "weather" and isinstance(call[0]["args"]["days"], int), "langchain: bind_tools")
    call = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).invoke("Is it raining?").tool_calls
    check(len(call) == 1 and call[0]["args"]["city"] in ("cat", "dog"), "langchain: bind_tools, any")
    pieces = list(chat.bind_tools([weather], tool_choice="weather").stream("Is it raining?"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    check(whole.tool_calls[0]["name"] == "weather" and isinstance(whole.tool_calls[0]["args"]["days"], int),
          "langchain: bind_tools in a stream")


def check_llama_index(base_url, model):
    llm = OpenAILike(model=model, api_base=base_url + "/v1", api_key="EMPTY", is_chat_model=True, temperature=1,
                     is_function_calling_model=True, max_tokens=300, context_window=512)
    answer = llm.structured_predict(Animal, PromptTemplate("Tell me of a cat"), tool_choice="required")
    check(isinstance(answer, Animal), "llama_index: structured_predict")
    guided = OpenAILike(model=model, api_base=base_url + "/v1", api_key="EMPTY", is_chat_model=True, temperature=1,
                        max_tokens=300, context_window=512,
                        additional_kwargs={"extra_body": {"guided_json": Toy.model_json_schema()}})
    # It writes the schema into the prompt, so a small one.
    program = LLMTextCompletionProgram.from_defaults(output_cls=Toy, prompt_template_str="Tell me of a toy", llm=guided)
    check(isinstance(program(), Toy), "llama_index: a program of a guided model")


def check_litellm(base_url, model):
    options = {"api_base": base_url + "/v1", "api_key": "EMPTY", "messages": MESSAGES, "max_tokens": 300, "seed": 4}
    plain = litellm.completion(model="openai/" + model, **{**options, "max_tokens": 20}, temperature=0)
    text = plain.choices[0].message.content
    check(text and plain.usage.completion_tokens == 20, "litellm: a chat")
    for provider in ("openai/", "hosted_vllm/"):
        name = provider + model
        chunks = litellm.completion(model=name, **{**options, "max_tokens": 20}, temperature=0, stream=True)
        check("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text, f"litellm: {name} streams the same")
        answer = litellm.completion(model=name, **options, temperature=1, response_format=Animal).choices[0].message.content
        check(Animal.model_validate_json(answer), f"litellm: {name} gives an object of the type")
        call = litellm.completion(model=name, **options, temperature=1, tools=[openai.pydantic_function_tool(Animal)],
                                  tool_choice={"type": "function", "function": {"name": "Animal"}}).choices[0].message
        check(Animal.model_validate_json(call.tool_calls[0].function.arguments), f"litellm: {name} calls a tool")
        try:
            litellm.completion(model=name, **options, temperature=-1)
            check(False, f"litellm: {name} hears a refusal")
        except litellm.BadRequestError as error:
            check("temperature = -1" in str(error), f"litellm: {name} hears a refusal")

    async def together():
        return await asyncio.gather(*(litellm.acompletion(model="openai/" + model, **{**options, "max_tokens": 20}, temperature=0)
                                      for _ in range(8)))

    check({answer.choices[0].message.content for answer in asyncio.run(together())} == {text}, "litellm: eight at once")
    written = litellm.text_completion(model="text-completion-openai/" + model, api_base=base_url + "/v1", api_key="EMPTY",
                                      prompt="Once upon a time", max_tokens=8, temperature=0)
    check(written.choices[0].text and written.usage.completion_tokens == 8, "litellm: text_completion")
    routed = litellm.Router(model_list=[{"model_name": "ours", "litellm_params": {
        "model": "openai/" + model, "api_base": base_url + "/v1", "api_key": "EMPTY"}}])
    answer = routed.completion(model="ours", messages=MESSAGES, max_tokens=20, temperature=0).choices[0].message.content
    check(answer == text, "litellm: a router")


def main(base_url):
    client = openai.OpenAI(base_url=base_url + "/v1", api_key="EMPTY", max_retries=0)
    model = client.models.list().data[0].id
    check_openai(client, model)
    check_langchain(base_url, model)
    check_llama_index(base_url, model)
    check_litellm(base_url, model)


if __name__ == "__main__":
    main(*sys.argv[1:])
