# SPDX-License-Identifier: Apache-2.0
"""A loaded model: text, logits, log-likelihoods, and sequences by hand."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import operator
import os
import sys
import types
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from stoch import _stoch
from stoch._arguments import (
    check_count,
    check_flag,
    check_mapping,
    check_name,
    check_number,
    check_text,
    check_texts,
    check_whole,
    name_or_none,
)
from stoch._config import ModelConfig, Settings, files_of, model_config_of
from stoch._html import table
from stoch._options import request_options
from stoch._progress import ProgressArgument, reporter

_log = logging.getLogger("stoch")

Ids = SequenceOf[int]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Result:
    """What a request gave; the fields of `stoch generate --json`."""

    model: str
    precision: str
    sc: str
    device: str
    prompt_ids: list[int]
    ids: list[int]
    text: str
    logprobs: list[float]
    logits_sha256: str
    finish_reason: str
    timings: dict[str, float]
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    drafts: dict[str, int] | None = None  # passes, drafted, accepted: with speculate=

    def __str__(self) -> str:
        return self.text

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        yield "text", self.text
        yield "finish_reason", self.finish_reason
        yield "tokens", len(self.ids)
        yield "model", self.model
        yield "sc", self.sc or self.precision
        yield "logits_sha256", self.logits_sha256

    def _repr_html_(self) -> str:
        return table([{"": name, "value": value} for name, value in self.__rich_repr__()])


def _conversation(
    messages: SequenceOf[Mapping[str, Any]],
    tools: SequenceOf[Mapping[str, Any]] | None,
    documents: SequenceOf[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Mapping[str, Any],
) -> str:
    """What a chat template is told, as JSON."""
    if isinstance(messages, (str, bytes, Mapping)) or not hasattr(messages, "__iter__"):
        raise _stoch.InvalidInput(f"messages is a {type(messages).__name__}: expected a list of {{role, content}}")
    messages = list(messages)
    for name, value in (("tools", tools), ("documents", documents)):
        if value is not None and (isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__")):
            raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a list")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _stoch.InvalidInput("messages: expected a list of {role, content}")
    told = {
        "messages": [dict(message) for message in messages],
        "tools": None if tools is None else list(tools),
        "documents": None if documents is None else list(documents),
        "kwargs": dict(kwargs),
        "add_generation_prompt": bool(add_generation_prompt),
        "continue_final_message": bool(continue_final_message),
    }
    try:
        text = json.dumps(told, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _stoch.InvalidInput(f"messages: expected what JSON can say: {error}") from None
    return check_text("messages", text)


def _result(report: str) -> Result:
    fields = json.loads(report)
    fields["top_logprobs"] = [[(int(i), float(p)) for i, p in row] for row in fields.get("top_logprobs", [])]
    return Result(**fields)


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text: natural logarithms, one standard error."""

    nll: float
    ppl: float
    error: float
    windows: int
    predictions: int
    elapsed_ms: float


class Stream:
    """Text of one request, piece by piece; `result` once it has ended."""

    def __init__(self, handle: _stoch.TextStream) -> None:
        self._handle: _stoch.TextStream | None = handle
        self._result: Result | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._handle is None:
            raise StopIteration
        text = self._handle.next()
        if text:
            return text
        self._result = _result(self._handle.report())
        self._handle = None
        raise StopIteration

    @property
    def result(self) -> Result:
        if self._result is None:
            raise _stoch.InvalidInput("the stream has not ended: iterate over it to its end")
        return self._result

    def close(self) -> None:
        """Ends the request and gives its memory back."""
        self._handle = None


def _ids(values: Any, what: str, allowed: str = "token ids, as model.tokenize(text) gives them") -> list[int]:
    try:
        ids = [operator.index(i) for i in (values.tolist() if hasattr(values, "tolist") else values)]
    except TypeError:
        raise _stoch.InvalidInput(f"{what} is a {type(values).__name__}: allowed are {allowed}") from None
    for i in ids:
        if not 0 <= i < 1 << 31:
            raise _stoch.InvalidInput(f"{what}: token id {i} is out of range")
    return ids


class Sequence:
    """Tokens of one sequence of an Engine. What is appended is pending until a step runs it."""

    def __init__(self, handle: _stoch.Sequence) -> None:
        self._handle = handle

    def append(self, ids: int | Ids) -> None:
        self._handle.append(_ids([ids] if _is_id(ids) else ids, "ids"))

    @property
    def ids(self) -> list[int]:
        return self._handle.ids

    @property
    def computed(self) -> int:
        """Tokens that steps have run."""
        return self._handle.computed

    @property
    def pending(self) -> int:
        return self._handle.pending

    @property
    def capacity(self) -> int:
        return self._handle.capacity

    def __len__(self) -> int:
        return len(self._handle.ids)


def _handle_of(name: str, sequence: Any) -> Any:
    if not isinstance(sequence, Sequence):
        raise _stoch.InvalidInput(f"{name}: a {type(sequence).__name__}: allowed is what add and fork return")
    return sequence._handle


class Engine:
    """Sequences by hand, over the KV cache of one Model."""

    def __init__(self, handle: _stoch.LoadedModel, vocab_size: int) -> None:
        self._handle = handle
        self._vocab_size = vocab_size

    def add(self, ids: Ids, *, capacity: int = 0) -> Sequence:
        """A sequence of these tokens that may grow to `capacity` ones (0: the context), whose memory is reserved."""
        return Sequence(_stoch.add_sequence(self._handle, _ids(ids, "ids"), check_whole("capacity", capacity)))

    def step(self, sequences: SequenceOf[Sequence]) -> Floats:
        """Runs every pending token. Returns the logits after the last one of each, float32 [sequences, vocab]."""
        if not hasattr(sequences, "__len__"):
            raise _stoch.InvalidInput(f"sequences is a {type(sequences).__name__}: allowed is a list of sequences")
        handles = [_handle_of("sequences", sequence) for sequence in sequences]
        logits = np.empty((len(handles), self._vocab_size), np.float32)
        _stoch.step(self._handle, handles, logits)
        return logits

    def fork(self, sequence: Sequence) -> Sequence:
        """A sequence of the same tokens; what is computed is shared in pages of 64, the rest is pending."""
        return Sequence(_handle_of("sequence", sequence).fork())

    def remove(self, sequence: Sequence) -> None:
        """Gives the memory of a sequence back."""
        _handle_of("sequence", sequence).remove()


class Model:
    """A model on its devices. `load` makes it; `close`, or the end of a `with` block, gives its memory back."""

    def __init__(self, handle: _stoch.LoadedModel, sc: ModelConfig | None = None) -> None:
        self._open: _stoch.LoadedModel | None = handle
        self._sc = sc
        self._facts: dict[str, Any] = json.loads(handle.facts())
        for notice in self._facts["notices"]:
            _log.info("%s", notice)

    @property
    def _handle(self) -> _stoch.LoadedModel:
        if self._open is None:
            raise _stoch.InvalidInput("the model is closed")
        return self._open

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory back once no stream or sequence of it is left."""
        self._open = None

    def __repr__(self) -> str:
        return f"Model({self._facts['name']!r}, {self._facts['sc'] or self._facts['precision']})"

    @property
    def name(self) -> str:
        return str(self._facts["name"])

    @property
    def config(self) -> dict[str, Any]:
        """The shape, in the words of config.json."""
        return dict(self._facts["config"])

    @property
    def precision(self) -> str:
        return str(self._facts["precision"])

    @property
    def sc(self) -> ModelConfig | None:
        """The SC configuration; None where the precision is exact."""
        return self._sc

    @property
    def context(self) -> int:
        """Positions of one sequence."""
        return int(self._facts["context"])

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by purpose."""
        return dict(self._facts["memory"])

    @property
    def device_map(self) -> dict[str, str]:
        """Modules and their devices."""
        return dict(self._facts["device_map"])

    @property
    def eos_ids(self) -> list[int]:
        """Tokens that end a text."""
        return self._handle.eos_ids()

    def tokenize(self, text: str, *, add_bos: bool = True, parse_special: bool = False) -> list[int]:
        return self._handle.encode(
            check_text("text", text), check_flag("add_bos", add_bos), check_flag("parse_special", parse_special)
        )

    def detokenize(self, ids: Ids) -> str:
        return self._handle.decode(_ids(ids, "ids"))

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        yield "name", self.name
        yield "precision", self.precision
        yield "sc", "" if self._sc is None else self._sc.describe()
        yield "layers", self.config["num_hidden_layers"]
        yield "hidden_size", self.config["hidden_size"]
        yield "vocab_size", self.config["vocab_size"]
        yield "context", self.context
        yield "memory_bytes", sum(self.memory.values())
        yield "devices", ", ".join(dict.fromkeys(self.device_map.values()))

    def _repr_html_(self) -> str:
        return table([{"": name, "value": value} for name, value in self.__rich_repr__()])

    def _prompt(self, prompt: str | Ids, what: str = "prompt") -> list[int]:
        """What is text is tokenized, with BOS in front."""
        return self.tokenize(prompt) if isinstance(prompt, str) else _ids(prompt, what, "text or token ids")

    @overload
    def generate(self, prompt: str | Ids, *, progress: ProgressArgument = None, **options: Any) -> Result: ...

    @overload
    def generate(
        self, prompt: SequenceOf[str] | SequenceOf[Ids], *, progress: ProgressArgument = None, **options: Any
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: str | Ids | SequenceOf[str] | SequenceOf[Ids],
        *,
        progress: ProgressArgument = None,
        **options: Any,
    ) -> Result | list[Result]:
        """Text from a prompt: a str, token ids, or a list of either, run together; its results are those of each alone.

        Of transformers' names max_new_tokens, do_sample (without a temperature: 1), stop_strings and eos_token_id are known.

        Options: max_tokens, temperature, top_p, top_k, min_p, repetition_penalty (repeat_penalty is the same),
        presence_penalty, frequency_penalty, logit_bias {id: bias}, seed, stop, stop_ids, ignore_eos, top_logprobs, hash_logits,
        and one of guided_json (a schema, its JSON or a pydantic model), guided_regex, guided_choice and guided_grammar (GBNF).
        """
        request = _request(**_options("Model.generate", options))
        if isinstance(prompt, Mapping):
            raise _stoch.InvalidInput(f"prompt is a {type(prompt).__name__}: allowed are text, token ids or a list of either")
        several = not isinstance(prompt, str) and hasattr(prompt, "__getitem__") and len(prompt) > 0 and not _is_id(prompt[0])
        prompts = [self._prompt(each) for each in prompt] if several else [self._prompt(prompt)]  # type: ignore[arg-type]
        with reporter(progress if len(prompts) > 1 else False, "generating") as report:
            reports = self._handle.generate(request, prompts, report)
        results = [_result(text) for text in reports]
        return results if several else results[0]

    def stream(self, prompt: str | Ids, **options: Any) -> Stream:
        """The same, piece by piece: `for text in model.stream("Once"): ...`."""
        return Stream(self._handle.stream(_request(**_options("Model.stream", options)), self._prompt(prompt)))

    def chat(
        self,
        messages: SequenceOf[Mapping[str, Any]],
        *,
        tools: SequenceOf[Mapping[str, Any]] | None = None,
        documents: SequenceOf[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        stop_ids: Ids = (),
        stream: bool = False,
        **options: Any,
    ) -> Result | Stream:
        """The assistant's answer to messages {role, content}, as the model's chat template writes them."""
        options = _options("Model.chat", {**options, "stop_ids": stop_ids})
        conversation = _conversation(
            messages,
            tools,
            documents,
            not continue_final_message,
            continue_final_message,
            check_mapping("chat_template_kwargs", chat_template_kwargs or {}, "a dict of variables"),
        )
        prompt = self._handle.encode_chat(conversation)
        options["stop_ids"] = [*_ids(options.get("stop_ids", ()), "stop_ids"), *self._handle.chat_stop_ids()]
        request = _request(**options)
        if stream:
            return Stream(self._handle.stream(request, prompt))
        return _result(self._handle.generate(request, [prompt], None)[0])

    @overload
    def apply_chat_template(
        self, conversation: SequenceOf[Mapping[str, Any]], *, tokenize: Literal[True] = ..., **options: Any
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self, conversation: SequenceOf[Mapping[str, Any]], *, tokenize: Literal[False], **options: Any
    ) -> str: ...

    def apply_chat_template(
        self,
        conversation: SequenceOf[Mapping[str, Any]],
        *,
        tokenize: bool = True,
        tools: SequenceOf[Mapping[str, Any]] | None = None,
        documents: SequenceOf[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int] | str:
        """The ids, or the text, of a conversation, as the method of transformers' tokenizers gives them.

        Special tokens that a message writes are text among the ids.
        """
        written = _conversation(
            conversation, tools, documents, add_generation_prompt, continue_final_message, kwargs
        )
        return self._handle.encode_chat(written) if tokenize else self._handle.render_chat(written)

    @property
    def chat_template(self) -> str:
        """The source of the chat template. Raises InvalidInput where there is no chat, and says why."""
        return self._handle.chat_template()

    def logits(self, ids: str | Ids, *, progress: ProgressArgument = None) -> Floats:
        """Logits after every token of a text, or of token ids, float32 [n, vocab]."""
        checked = self._prompt(ids, "ids")
        logits = np.empty((len(checked), int(self._facts["config"]["vocab_size"])), np.float32)
        if checked:
            with reporter(progress, "logits") as report:
                self._handle.logits(checked, logits, report)
        return logits

    def hidden(self, ids: str | Ids, layer: int, *, progress: ProgressArgument = None) -> Floats:
        """The residual stream of every token of a text, or of token ids, after `layer` decoder layers, float32 [n, hidden_size].

        0 is the embeddings; the last one, num_hidden_layers, is what the final norm reads.
        """
        checked = self._prompt(ids, "ids")
        hidden = np.empty((len(checked), int(self._facts["config"]["hidden_size"])), np.float32)
        if checked:
            with reporter(progress, "hidden") as report:
                self._handle.hidden(checked, check_whole("layer", layer), hidden, report)
        return hidden

    def logits_sha256(self, ids: str | Ids, *, new_tokens: int = 1) -> str:
        """sha256 over the logits of a text, or ids, and of all but the last of `new_tokens` greedy ones: `stoch verify` checks it."""
        return self._handle.logits_sha256(self._prompt(ids, "ids"), check_whole("new_tokens", new_tokens))

    def loglikelihood(
        self, requests: SequenceOf[tuple[Ids, Ids]], *, progress: ProgressArgument = None
    ) -> list[tuple[float, bool]]:
        """(log-probability, is_greedy) of every continuation after its context, both token ids."""
        try:
            given = [(context, continuation) for context, continuation in requests]
        except (TypeError, ValueError):
            raise _stoch.InvalidInput("requests: expected a list of (context ids, continuation ids)") from None
        pairs = [(_ids(context, "context"), _ids(continuation, "continuation")) for context, continuation in given]
        with reporter(progress, "scoring") as report:
            return self._handle.score(pairs, report)

    def perplexity(
        self,
        text: str | Ids | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        ctx: int = 0,
        max_windows: int = 0,
        progress: ProgressArgument = None,
    ) -> Perplexity:
        """Of a text, or of the text in `file`, cut into windows of `ctx` tokens (0: 2048, or the context) as `stoch perplexity` cuts it."""
        if (text is None) == (file is None):
            raise _stoch.InvalidInput("perplexity: give a text, or file=")
        ids = self._prompt(_text_in(file) if file is not None else _no_path(text), "text")
        window = check_whole("ctx", ctx) or min(2048, self.context)
        max_windows = check_count("max_windows", max_windows)
        with reporter(progress, "perplexity") as report:
            windows, predictions, nll, ppl, error, elapsed = self._handle.perplexity(ids, window, max_windows, report)
        return Perplexity(nll, ppl, error, windows, predictions, elapsed)

    def engine(self) -> Engine:
        """Sequences by hand."""
        return Engine(self._handle, int(self._facts["config"]["vocab_size"]))


def _text_in(file: str | os.PathLike[str]) -> str:
    check_name("file", file)
    try:
        return Path(file).read_bytes().decode("utf-8")
    except OSError as error:
        raise _stoch.InvalidInput(f"{os.fspath(file)}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _stoch.InvalidInput(f"{os.fspath(file)}: not UTF-8 at byte {error.start}") from None


def _no_path(text: Any) -> Any:
    """The text, which is not the name of a file."""
    named = isinstance(text, os.PathLike) or (isinstance(text, str) and len(text) < 4096 and "\n" not in text and os.path.isfile(text))
    if named:
        raise _stoch.InvalidInput(f"perplexity takes a text, and {os.fspath(text)} is a file: perplexity(file=...) reads it")
    return text


def _is_id(value: Any) -> bool:
    if getattr(value, "ndim", 1) == 0:  # a number of numpy or torch
        return True
    return not isinstance(value, (str, bytes)) and not hasattr(value, "__len__")


@functools.cache
def _request_names() -> tuple[str, ...]:
    return tuple(inspect.signature(_request).parameters)


def _options(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What _request takes, of the options of a public function."""
    return request_options(function, given, _request_names())


def _same_penalty(repetition: float | None, repeat: float | None) -> float:
    if repetition is not None and repeat is not None and repetition != repeat:
        raise _stoch.InvalidInput("repeat_penalty is the same as repetition_penalty; give one")
    if repetition is not None:
        return check_number("repetition_penalty", repetition)
    return 1.0 if repeat is None else check_number("repeat_penalty", repeat)


def _seed(value: Any) -> int:
    """Any number of 64 bits; a negative one has the bits of two's complement."""
    number = check_whole("seed", value, 4096)
    if not -1 << 63 <= number < 1 << 64:
        raise _stoch.InvalidInput(f"seed = {number}: allowed is -2^63..2^64-1")
    return number % (1 << 64)


def _token_id(value: Any) -> int:
    """A key of logit_bias; JSON has them as text."""
    if isinstance(value, str) and value.isdecimal():
        if len(value) > 4000:  # int() reads some 4300 digits at most
            raise _stoch.InvalidInput("logit_bias: a token id is a number that 64 bits do not hold")
        return int(value)
    return check_whole("logit_bias: a token id", value)


def _stops(stop: Any) -> list[str]:
    texts = check_texts("stop", [stop] if isinstance(stop, str) else stop)
    if "" in texts:
        raise _stoch.InvalidInput("stop has an empty text: every answer would end before its first character")
    return texts


def _request(
    *,
    max_tokens: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    repetition_penalty: float | None = None,
    repeat_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    seed: int = 0,
    stop: str | SequenceOf[str] = (),
    stop_ids: Ids = (),
    ignore_eos: bool = False,
    top_logprobs: int = 0,
    hash_logits: bool = True,
    guided_json: Any = None,
    guided_regex: str | None = None,
    guided_choice: SequenceOf[str] | None = None,
    guided_grammar: str | None = None,
) -> _stoch.Request:
    choices = [] if guided_choice is None else check_texts("guided_choice", guided_choice)
    guides = {
        "guided_json": guided_json,
        "guided_regex": guided_regex,
        "guided_choice": None if guided_choice is None else choices,
        "guided_grammar": guided_grammar,
    }
    given = [name for name, guide in guides.items() if guide is not None]
    if len(given) > 1:
        raise _stoch.InvalidInput(f"{' and '.join(given)}: a request has one grammar")
    for name in given:
        if not guides[name]:
            raise _stoch.InvalidInput(f"{name} is empty")
    if max_tokens is not None and check_whole("max_tokens", max_tokens) < 0:
        raise _stoch.InvalidInput(f"max_tokens = {max_tokens}: allowed is 0 or more, or None")
    bias = [
        (_token_id(i), check_number(f"logit_bias of {i}", b))
        for i, b in check_mapping("logit_bias", {} if logit_bias is None else logit_bias, "a dict {token id: bias}").items()
    ]
    for i, b in bias:
        if not 0 <= i < 1 << 31 or not math.isfinite(b):
            raise _stoch.InvalidInput(f"logit_bias {{{i}: {b}}}: allowed is a token id and a finite number")
    return _stoch.Request(
        -1 if max_tokens is None else max_tokens,
        check_number("temperature", temperature),
        check_number("top_p", top_p),
        check_whole("top_k", top_k),
        check_number("min_p", min_p),
        _same_penalty(repetition_penalty, repeat_penalty),
        check_number("presence_penalty", presence_penalty),
        check_number("frequency_penalty", frequency_penalty),
        bias,
        _seed(seed),
        _stops(stop),
        _ids(stop_ids, "stop_ids"),
        check_flag("ignore_eos", ignore_eos),
        check_count("top_logprobs", top_logprobs, 1000),
        check_flag("hash_logits", hash_logits),
        "" if guided_json is None else _schema(guided_json),
        "" if guided_regex is None else check_text("guided_regex", guided_regex),
        choices,
        "" if guided_grammar is None else check_text("guided_grammar", guided_grammar),
    )


def _schema(guide: Any) -> str:
    """The JSON of a schema: text, an object, or a class that has model_json_schema, as those of pydantic have."""
    if isinstance(guide, str):
        return check_text("guided_json", guide)
    if hasattr(guide, "model_json_schema"):
        guide = guide.model_json_schema()
    if not isinstance(guide, Mapping):
        raise _stoch.InvalidInput(
            f"guided_json is a {type(guide).__name__}: allowed is a schema, its JSON or a pydantic model"
        )
    try:
        return json.dumps(guide)
    except (TypeError, ValueError) as error:
        raise _stoch.InvalidInput(f"guided_json: expected what JSON can say: {error}") from None


def _max_memory(value: str | Mapping[int, int | str] | None) -> str:
    if value is None or isinstance(value, str):
        return name_or_none("max_memory", value)
    check_mapping("max_memory", value, "a str or a dict {device: bytes}")
    return ",".join(f"{device}={size}" for device, size in value.items())


def load(
    model: str | os.PathLike[str],
    *,
    sc: Settings | SequenceOf[Settings] | ModelConfig | None = None,
    precision: str = "sc",
    device: str = "auto",
    device_map: str | Mapping[str, int | str] = "auto",
    max_memory: str | Mapping[int, int | str] | None = None,
    split: str = "layer",
    context: int = 0,
    batch: int = 8,
    pass_rows: int = 0,
    speculate: str | os.PathLike[str] = "off",
    draft_tokens: int = 7,
    seed: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    threads: int = 0,
    cpu_variant: str = "",
    mp: str | os.PathLike[str] | None = None,
    mp_normalise: str | None = None,
    smooth: str | os.PathLike[str] | None = None,
    mask: str | os.PathLike[str] | None = None,
    mask_bits: int | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    unsafe_templates: bool = False,
    progress: ProgressArgument = None,
) -> Model:
    """Loads a Hugging Face folder, or random:SHAPE, as the options of the command line say.

    sc       settings of --sc, or a dict of them ({"down_proj": {"stoc_len": 64}}), "preset=halved" where nothing is given; precision is "sc", "fp32" or "fp16".
    batch    sequences that one pass takes at most; it changes memory and speed, never bits.
    context  positions of a sequence; 0 is the model's, or what fits of it.
    pass_rows  of a prompt, computed at once: fewer take less memory and more time; 0 is what the device wants.
    speculate  who guesses tokens that one pass checks, draft_tokens at most, where that is faster; text and
             log-probabilities are the same bits. "ngram": what followed the last three tokens before; or a smaller
             model with the same tokenizer, named as model is.
    seed     of random:SHAPE.
    mp, smooth, mask  files, as ModelConfig takes them.
    chat_template  a Jinja file, or a name as --chat-template takes it; the model's where nothing is given.
    unsafe_templates  render chat templates, which are code, where the system cannot confine them.

    >>> import stoch
    >>> with stoch.load("demo", device="cpu") as model:
    ...     model.generate("Once upon a time", max_tokens=4).text
    ', there was a'
    """
    name = check_name("model", model)
    if seed is not None:
        if not name.startswith("random:") or name.count(":") != 1:
            raise _stoch.InvalidInput(f"seed = {seed}: has a meaning with random:SHAPE alone, got model {name}")
        name = f"{name}:{_seed(seed)}"
    files = {"mp": mp, "mp_normalise": mp_normalise, "smooth": smooth, "mask": mask, "mask_bits": mask_bits}
    config: ModelConfig | None = None
    if precision == "sc" or sc is not None or any(value is not None for value in files.values()):
        config = model_config_of(sc, files)
    with reporter(progress, "loading") as report:
        handle = _stoch.load(
            name,
            name_or_none("tokenizer", tokenizer),
            [] if config is None else config.settings,
            files_of(config),
            check_text("precision", precision),
            check_text("device", device),
            check_text("device_map", device_map) if isinstance(device_map, str) else "auto",
            "" if isinstance(device_map, str) else json.dumps(dict(check_mapping("device_map", device_map, "a str or a dict"))),
            _max_memory(max_memory),
            check_text("split", split),
            check_whole("context", context),
            check_whole("batch", batch),
            check_whole("pass_rows", pass_rows),
            check_name("speculate", speculate),
            check_whole("draft_tokens", draft_tokens),
            check_whole("threads", threads, 32),
            check_text("cpu_variant", cpu_variant),
            report,
        )
    handle.use_chat(name_or_none("chat_template", chat_template), sys.executable, check_flag("unsafe_templates", unsafe_templates))
    return Model(handle, config if precision == "sc" else None)
