# SPDX-License-Identifier: Apache-2.0
"""Configurations: of one product, and of a model."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from stoch import _stoch

# What a parameter may be given as.
ScValue = int | bool | str | Sequence[int] | None

_ROWS = {row[0]: row for row in _stoch.parameters()}
_ALIASES = {row[1]: row[0] for row in _ROWS.values() if row[1]}


def _name_of(name: str) -> str:
    if name in _ROWS:
        return name
    if name in _ALIASES:
        return _ALIASES[name]
    raise _stoch.InvalidInput(f"SC parameter {name}: allowed is {', '.join(_ROWS)}")


def _text_of(name: str, value: object) -> str:
    """The value as the command line writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ":".join(str(operator.index(item)) for item in value)
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise _stoch.InvalidInput(
            f"SC parameter {name} = {value!r}: allowed is a whole number, a bool, a str or a sequence of whole numbers"
        ) from None


def _value_of(name: str, text: str) -> int | bool | str | tuple[int, ...]:
    kind = _ROWS[name][2]
    if kind == "integer":
        return int(text)
    if kind == "flag":
        return text == "1"
    if kind == "list":
        return tuple(int(item) for item in text.split(":")) if text else ()
    return text


class ScConfig:
    """The parameters of one SC product; names and defaults are those of docs/sc_arithmetic.md.

    Immutable, hashable and picklable. A parameter that is None, or not given, has its default.

    >>> import stoch
    >>> config = stoch.ScConfig(halve=True, stoc_len=64)
    >>> config.stoc_len, config.sc_prec, config.describe()
    (64, 8, 'halve=1,stoc_len=64')
    >>> stoch.ScConfig.parse("stoc_len=64,halve=1") == config
    True
    """

    __slots__ = ("_handle", "_text")
    _handle: _stoch.Config
    _text: str

    def __init__(self, **parameters: ScValue) -> None:
        settings = [
            (_name_of(name), _text_of(name, value)) for name, value in parameters.items() if value is not None
        ]
        handle = _stoch.Config(settings)
        object.__setattr__(self, "_handle", handle)
        object.__setattr__(self, "_text", handle.describe())

    @classmethod
    def parse(cls, text: str) -> ScConfig:
        """The configuration that `describe` wrote, or that --sc takes for one product."""
        return cls(**dict(_stoch.parse_config(text)))

    def describe(self) -> str:
        """The parameters that differ from the defaults, as one text."""
        return self._text

    def resolve(self) -> ScConfig:
        """The same configuration with every default that follows from other parameters filled in."""
        return ScConfig(**{name: text for name, text in self._handle.resolved() if text})

    def replace(self, **parameters: ScValue) -> ScConfig:
        """A configuration with other values of some parameters."""
        if not parameters:
            return self
        return ScConfig(**{**dict(_stoch.parse_config(self._text)), **_by_name(parameters)})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _ROWS and name not in _ALIASES:
            raise AttributeError(name)
        name = _name_of(name)
        return _value_of(name, self._handle.get(name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("ScConfig is immutable: use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("ScConfig is immutable")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_ROWS]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScConfig) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"ScConfig.parse({self._text!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (_parse, (self._text,))


def _parse(text: str) -> ScConfig:
    return ScConfig.parse(text)


def _by_name(parameters: Mapping[str, ScValue]) -> dict[str, ScValue]:
    return {_name_of(name): value for name, value in parameters.items()}


@functools.lru_cache(maxsize=256)
def _cached(base: ScConfig, items: tuple[tuple[str, Any], ...]) -> ScConfig:
    return base.replace(**dict(items))


_DEFAULT = ScConfig()


def config_of(config: ScConfig | None, parameters: Mapping[str, ScValue]) -> ScConfig:
    """`config`, or the default one, with `parameters` changed. Equal arguments give the same object, most of the time."""
    base = _DEFAULT if config is None else config
    if not isinstance(base, ScConfig):
        raise _stoch.InvalidInput(f"config is a {type(base).__name__}: allowed is a stoch.ScConfig")
    if not parameters:
        return base
    items = tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in parameters.items()))
    return _cached(base, items)


class ModelConfig:
    """Which SC configuration every operator of a model runs in, from settings of --sc.

    >>> import stoch
    >>> config = stoch.ModelConfig("preset=halved", "down_proj.stoc_len=64")
    >>> config.describe()
    'preset=halved,down_proj.stoc_len=64'
    >>> config.is_batch_invariant, config.is_chunk_invariant
    (True, True)
    """

    __slots__ = ("_facts",)
    _facts: tuple[str, bool, bool]

    def __init__(self, *settings: str) -> None:
        object.__setattr__(self, "_facts", _stoch.describe_model_config(list(settings)))

    def describe(self) -> str:
        """The shortest settings that give this configuration."""
        return self._facts[0]

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a sequence's bits do not depend on what else is in the pass."""
        return self._facts[1]

    @property
    def is_chunk_invariant(self) -> bool:
        """Whether they do not depend on how a sequence is cut into passes either."""
        return self._facts[2]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("ModelConfig is immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelConfig) and other._facts == self._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    def __repr__(self) -> str:
        return f"ModelConfig({self.describe()!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (ModelConfig, (self.describe(),))
