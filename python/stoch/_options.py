# SPDX-License-Identifier: Apache-2.0
"""Options of a request by the names that people know from transformers' generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoch import _stoch
from stoch._config import did_you_mean

# Names of transformers that mean the same.
_SAME = {"max_new_tokens": "max_tokens", "stop_strings": "stop"}

# Names that pass with these values, since they ask for nothing then, and what to do instead otherwise.
_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "num_beams": ((1, None), "no beam search"),
    "num_return_sequences": ((1, None), "give the prompt several times, each with its seed"),
    "use_cache": ((True, None), "the KV cache is always used"),
    "typical_p": ((1.0, None), "allowed are top_p, top_k and min_p"),
    "no_repeat_ngram_size": ((0, None), "allowed are repetition_penalty, presence_penalty and frequency_penalty"),
    "max_length": ((None,), "it counts the prompt too: use max_new_tokens"),
    "streamer": ((None,), "use Model.stream"),
    "return_dict_in_generate": ((False, None), "a Result has ids, text, logprobs and top_logprobs"),
    "output_scores": ((False, None), "use Model.logits, or top_logprobs"),
}
_NO_MEANING = ("pad_token_id", "attention_mask")  # nothing is padded


def request_options(function: str, given: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """`given` by the names of a request, `known`. Raises TypeError, in the name of `function`, for what no request has."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NO_MEANING or name in ("do_sample", "eos_token_id"):
            continue
        if name in _NEUTRAL:
            values, instead = _NEUTRAL[name]
            if not any(value is allowed or value == allowed for allowed in values):
                raise TypeError(f"{function}() has no {name}={value!r}: {instead}")
            continue
        own = _SAME.get(name, name)
        if own not in known:
            hint = did_you_mean(name, [*known, *_SAME, "do_sample", "eos_token_id"])
            raise TypeError(f"{function}() has no argument {name!r}: {hint}allowed are {', '.join(known)}")
        if value is None:  # the default, as in a GenerationConfig
            continue
        if own in options and options[own] != value:
            raise _stoch.InvalidInput(f"{name} is the same as {own}; give one")
        options[own] = value
    _sampling(options, given.get("do_sample"))
    if given.get("eos_token_id") is not None:
        ends = given["eos_token_id"]
        options["stop_ids"] = [*options.get("stop_ids", ()), *(ends if isinstance(ends, Sequence) else [ends])]
    return options


def _sampling(options: dict[str, Any], do_sample: bool | None) -> None:
    """do_sample as a temperature: 0 without it, 1 with it where none is given."""
    if do_sample is None:
        return
    temperature = options.get("temperature")
    if do_sample and temperature == 0:
        raise _stoch.InvalidInput("do_sample=True with temperature = 0: allowed is more than 0")
    if not do_sample and temperature:
        raise _stoch.InvalidInput(f"do_sample=False with temperature = {temperature}: give one of them")
    if temperature is None:
        options["temperature"] = 1.0 if do_sample else 0.0
