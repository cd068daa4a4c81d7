# SPDX-License-Identifier: Apache-2.0
"""ScConfig and ModelConfig."""

from __future__ import annotations

import copy
import pickle

import pytest

import stoch
from stoch import _stoch


def test_defaults_are_those_of_the_definition() -> None:
    config = stoch.ScConfig()
    assert config.describe() == "" and config.sc_prec == 8 and config.halve is False and config.scramble == "bitrev"
    full = config.resolve()
    assert (full.stoc_len, full.rng_levels) == (256, 256)
    assert stoch.ScConfig(halve=True).resolve().stoc_len == 128


def test_every_parameter_is_an_attribute() -> None:
    for name, alias, kind, default in _stoch.parameters():
        value = getattr(stoch.ScConfig(), name)
        if kind == "integer" and default == "":
            assert value is None, name  # it follows from others
            continue
        assert isinstance(value, {"integer": int, "flag": bool, "choice": str, "list": tuple, "text": str}[kind]), name
        if alias:
            assert getattr(stoch.ScConfig(), alias) == value
        assert name in dir(stoch.ScConfig())
        assert default == "" or str(int(value) if kind == "flag" else value) == default
    with pytest.raises(AttributeError):
        stoch.ScConfig().stoc_length  # noqa: B018


def test_value_semantics() -> None:
    config = stoch.ScConfig(stoc_len=64, halve=True)
    same = stoch.ScConfig.parse("halve=1,stoc_len=64")
    assert config == same and hash(config) == hash(same) and config != stoch.ScConfig()
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    assert eval(repr(config), {"ScConfig": stoch.ScConfig}) == config
    with pytest.raises(AttributeError):
        config.stoc_len = 3
    assert config.replace(stoc_len=32).stoc_len == 32 and config.stoc_len == 64
    listed = stoch.ScConfig(source="list", stoc_len=3, source_list_a=[0, 5, 3], source_list_b=(1, 2, 3))
    assert listed.source_list_a == (0, 5, 3)
    assert stoch.ScConfig.parse(listed.describe()) == listed
    faulty = stoch.ScConfig(fault_product=1e-3, acc_bits=12, fault_acc="0.1:3")
    assert faulty.fault_product == "0.001" and stoch.ScConfig.parse(faulty.describe()) == faulty


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sc_prec": 9}, "sc_prec = 9"),
        ({"mode": "ternary"}, "mode = 'ternary'"),
        ({"halve": True, "stoc_len": 200}, "stoc_len = 200"),
        ({"stoc_lenn": 1}, "stoc_lenn"),
    ],
)
def test_refusals(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        stoch.ScConfig(**parameters)


def test_model_config() -> None:
    config = stoch.ModelConfig("stoc_len=64", "down_proj.stoc_len=128")
    assert stoch.ModelConfig(config.describe()) == config == pickle.loads(pickle.dumps(config))
    assert config.is_batch_invariant and config.is_chunk_invariant
    published = stoch.ModelConfig("preset=published")
    assert published.is_batch_invariant and not published.is_chunk_invariant
    with pytest.raises(stoch.InvalidInput, match="attention"):
        stoch.ModelConfig("attention=sideways")
