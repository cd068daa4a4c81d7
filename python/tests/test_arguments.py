# SPDX-License-Identifier: Apache-2.0
"""Arguments of another type, refused by their names; and those that are of the type though not of Python's own classes."""

from __future__ import annotations

import decimal
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stoch

USER = {"role": "user", "content": "Hi"}
SHAPE = "random:llama-3.2-1b,layers=1,vocab=64"


class APath:
    """An os.PathLike that is no Path."""

    def __init__(self, path: object) -> None:
        self._path = str(path)

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 5}, "precision is a int: allowed is a str"),
        ({"device": 0}, "device is a int: allowed is a str"),
        ({"device_map": "\ud800"}, "device_map has half a surrogate pair at 0"),
        ({"device_map": 5}, "device_map is a int: allowed is a str or a dict"),
        ({"max_memory": 5}, r"max_memory is a int: allowed is a str or a dict \{device: bytes\}"),
        ({"max_memory": ""}, "max_memory is empty"),
        ({"split": 3}, "split is a int: allowed is a str"),
        ({"context": "8"}, "context is a str: allowed is a whole number"),
        ({"threads": 1 << 31}, "threads is a number that 32 bits do not hold"),
        ({"speculate": 5}, "speculate is a int: allowed is a str or a path"),
        ({"tokenizer": ""}, "tokenizer is empty"),
        ({"tokenizer": 5}, "tokenizer is a int: allowed is a str or a path"),
        ({"tokenizer": "a\0b"}, "tokenizer holds a NUL character"),
        ({"cpu_variant": 5}, "cpu_variant is a int: allowed is a str"),
        ({"mp": ""}, "mp is empty"),
        ({"smooth": 5}, "smooth is a int: allowed is a str or a path"),
        ({"mask_bits": "x"}, "mask_bits is a str: allowed is a whole number"),
        ({"mp_normalise": 5}, "mp_normalise is a int: allowed is a str"),
        ({"chat_template": ""}, "chat_template is empty"),
        ({"unsafe_templates": "no"}, "unsafe_templates is a str: allowed is True or False"),
    ],
)
def test_of_load(demo: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        stoch.load(demo, **{"device": "cpu", **options})


def test_names_of_models(demo: str) -> None:
    for model, message in (("", "model is empty"), (5, "model is a int"), (None, "model is a NoneType"), (demo.encode(), "model is a bytes")):
        with pytest.raises(stoch.InvalidInput, match=message):
            stoch.load(model)  # type: ignore[arg-type]
    with pytest.raises(stoch.InvalidInput, match="seed is a str: allowed is a whole number"):
        stoch.load(SHAPE, device="cpu", seed="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "hot"}, "temperature is a str: allowed is a number"),
        ({"temperature": 10**400}, "temperature is a number that no float holds"),
        ({"min_p": []}, "min_p is a list: allowed is a number"),
        ({"repeat_penalty": "1"}, "repeat_penalty is a str: allowed is a number"),
        ({"repetition_penalty": "1"}, "repetition_penalty is a str: allowed is a number"),
        ({"presence_penalty": b"1"}, "presence_penalty is a bytes: allowed is a number"),
        ({"seed": "x"}, "seed is a str: allowed is a whole number"),
        ({"stop": ""}, "stop has an empty text"),
        ({"stop": ["a", ""]}, "stop has an empty text"),
        ({"stop": 5}, "stop is a int: allowed is a list of str"),
        ({"stop": {"a": 1}}, "stop is a dict: allowed is a list of str"),
        ({"logit_bias": 5}, r"logit_bias is a int: allowed is a dict \{token id: bias\}"),
        ({"logit_bias": {"x": 1}}, "logit_bias: a token id is a str: allowed is a whole number"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias: a token id is a number that 64 bits do not hold"),
        ({"logit_bias": {1.5: 1}}, "logit_bias: a token id is a float: allowed is a whole number"),
        ({"logit_bias": {1: "x"}}, "logit_bias of 1 is a str: allowed is a number"),
        ({"top_logprobs": -1}, "top_logprobs = -1: allowed is 0 to 1000"),
        ({"top_logprobs": 10**6}, "top_logprobs = 1000000: allowed is 0 to 1000"),
        ({"ignore_eos": "no"}, "ignore_eos is a str: allowed is True or False"),
        ({"hash_logits": 5}, "hash_logits is a int: allowed is True or False"),
        ({"guided_choice": "abc"}, "guided_choice is a str: allowed is a list of str"),
        ({"guided_choice": 5}, "guided_choice is a int: allowed is a list of str"),
        ({"guided_json": {"enum": {1}}}, "guided_json: expected what JSON can say"),
    ],
)
def test_of_requests(model: stoch.Model, options: dict[str, object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        model.generate("a", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate({"a": 1}), "prompt is a dict: allowed are text, token ids or a list of either"),
        (lambda m: m.chat(None), "messages is a NoneType: expected a list"),
        (lambda m: m.chat(USER), "messages is a dict: expected a list"),
        (lambda m: m.chat([USER], tools="x"), "tools is a str: allowed is a list"),
        (lambda m: m.chat([USER], documents=5), "documents is a int: allowed is a list"),
        (lambda m: m.chat([USER], chat_template_kwargs=5), "chat_template_kwargs is a int: allowed is a dict of variables"),
        (lambda m: m.chat([USER], stop_ids=5), "stop_ids is a int: allowed are token ids"),
        (lambda m: m.tokenize("a", add_bos="no"), "add_bos is a str: allowed is True or False"),
        (lambda m: m.tokenize("a", parse_special=1), "parse_special is a int: allowed is True or False"),
        (lambda m: m.hidden("a", 1.5), "layer is a float: allowed is a whole number"),
        (lambda m: m.logits_sha256("a", new_tokens="2"), "new_tokens is a str: allowed is a whole number"),
        (lambda m: m.perplexity(file=5), "file is a int: allowed is a str or a path"),
        (lambda m: m.perplexity(file=""), "file is empty"),
        (lambda m: m.perplexity("a", ctx="64"), "ctx is a str: allowed is a whole number"),
        (lambda m: m.perplexity("a", max_windows=1.5), "max_windows is a float: allowed is a whole number"),
        (lambda m: m.perplexity("a", max_windows=-1), "max_windows = -1: allowed is 0 or more"),
        (lambda m: m.engine().add([1], capacity="8"), "capacity is a str: allowed is a whole number"),
        (lambda m: m.engine().step(5), "sequences is a int: allowed is a list of sequences"),
        (lambda m: m.engine().step(["x"]), "sequences: a str: allowed is what add and fork return"),
        (lambda m: m.engine().fork(5), "sequence: a int: allowed is what add and fork return"),
        (lambda m: m.engine().remove(None), "sequence: a NoneType: allowed is what add and fork return"),
        (lambda m: m.engine().add([1]).append("x"), "ids is a str: allowed are token ids"),
    ],
)
def test_of_methods(model: stoch.Model, call: Callable[[stoch.Model], object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        call(model)


def test_of_commands(tmp_path: Path) -> None:
    for call, message in (
        (lambda: stoch.verify(""), "model is empty"),
        (lambda: stoch.verify("demo", only=5), "only is a int: allowed is a list of str"),  # type: ignore[arg-type]
        (lambda: stoch.verify("demo", only="\ud800"), "only has half a surrogate pair at 0"),
        (lambda: stoch.verify("demo", goldens=""), "goldens is empty"),
        (lambda: stoch.sweep(5, output=tmp_path / "o"), "plan is a int: allowed is a str or a path"),  # type: ignore[arg-type]
        (lambda: stoch.bench("demo", device="cpu", prompt="x"), "--prompt: expected a whole number"),  # type: ignore[arg-type]
        (lambda: stoch.sweep(None, output=tmp_path / "o", resume=np.True_), "give a plan"),  # type: ignore[arg-type]
        (lambda: stoch.bench(""), "--model: expected a value, got an empty one"),
    ):
        with pytest.raises(stoch.InvalidInput, match=message):
            call()


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": np.uint8(4), "top_k": np.int32(0), "seed": np.uint64(2**64 - 1), "top_logprobs": np.int64(2)},
        {"temperature": np.float32(0), "top_p": np.float64(1), "min_p": 0, "presence_penalty": decimal.Decimal(0)},
        {"repetition_penalty": np.float32(1), "ignore_eos": np.True_, "hash_logits": np.False_},
        {"stop": ("zzzz",)},
        {"stop": np.array(["zzzz"])},
        {"stop": (text for text in ["zzzz"])},
        {"stop_ids": np.array([5]), "eos_token_id": 6},
        {"logit_bias": {np.int64(7): np.float32(-1)}},
        {"logit_bias": {"7": -1}},  # as JSON has it
        {"logit_bias": {}},
        {"temperature": None, "top_p": None, "top_k": None, "seed": None, "stop": None, "stop_ids": None, "guided_choice": None},
        {"do_sample": False, "temperature": None, "stop_strings": None, "max_new_tokens": None},
    ],
)
def test_what_is_the_same(model: stoch.Model, options: dict[str, object]) -> None:
    want = model.generate("Once upon", max_tokens=4).ids
    assert model.generate("Once upon", **{"max_tokens": 4, **options}).ids == want


def test_numbers_and_flags_of_numpy(model: stoch.Model) -> None:
    assert model.tokenize("a", add_bos=np.False_) == model.tokenize("a", add_bos=False)  # type: ignore[arg-type]
    assert np.array_equal(model.hidden("a", np.int64(1)), model.hidden("a", 1))
    assert model.logits_sha256("a", new_tokens=np.int32(2)) == model.logits_sha256("a", new_tokens=2)
    engine = model.engine()
    sequence = engine.add(np.array(model.tokenize("Once")), capacity=np.int64(8))
    sequence.append(engine.step((sequence,))[0].argmax())
    assert sequence.ids[-1:] == model.generate("Once", max_tokens=1).ids
    engine.remove(sequence)
    answer = model.chat((each for each in [USER]), max_tokens=2, documents=(), chat_template_kwargs=None, stop_ids=None)  # type: ignore[arg-type]
    assert answer.ids == model.chat([USER], max_tokens=2).ids  # type: ignore[union-attr]
    assert stoch.bench("demo", device="cpu", precision="sc", prompt=np.int64(4), decode=np.int32(1), batch=np.array([1]), repetitions=1)


def test_paths_and_options_of_load(demo: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a dog. " * 20)
    config = pickle.loads(pickle.dumps(stoch.ModelConfig("stoc_len=64", mp=None, mask_bits=np.int64(0))))
    with stoch.load(
        APath(demo), device="cpu", context=np.int64(128), batch=np.int32(2), max_memory={0: "8GiB"}, sc=config,
        chat_template=Path(demo) / "chat_template.jinja", speculate=Path(demo), unsafe_templates=np.False_,
    ) as model:
        assert model.perplexity(file=APath(text), ctx=np.int64(64), max_windows=np.int64(1)).windows == 1
    assert [row["passed"] for row in stoch.verify(APath(demo), device="cpu", only="product.halved")] == [True]
    for seed in (2**63, np.uint64(2**64 - 1), -1):
        with stoch.load(SHAPE, device="cpu", seed=seed) as model:
            assert model.name == f"{SHAPE}:{int(seed) % 2**64}"
