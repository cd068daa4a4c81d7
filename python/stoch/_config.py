# SPDX-License-Identifier: Apache-2.0
"""Configurations: of one product, and of a model."""

from __future__ import annotations

import difflib
import functools
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoch import _stoch
from stoch._arguments import check_text, check_whole, name_or_none
from stoch._html import table
from stoch._multiplier import MultiplierTable, count_digits, name_of

# What a parameter may be given as.
ScValue = int | float | bool | str | Sequence[int] | os.PathLike[str] | MultiplierTable | None
# What --sc takes as one text, or a dict of it: {"preset": "halved", "down_proj": {"stoc_len": 64}}.
Settings = str | Mapping[Any, Any]

_ROWS = {row[0]: row for row in _stoch.parameters()}
_ALIASES = {row[1]: row[0] for row in _ROWS.values() if row[1]}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """"did you mean NAME? ", or nothing where no name is near."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]}? " if near else ""


def _name_of(name: str) -> str:
    if name in _ROWS:
        return name
    if name in _ALIASES:
        return _ALIASES[name]
    hint = did_you_mean(name, [*_ROWS, *_ALIASES])
    raise _stoch.InvalidInput(f"SC parameter {name}: {hint}allowed is {', '.join(_ROWS)}")


def _is_rate(name: str) -> bool:
    """Whether it is a rate of faults: text of a number, or RATE:BIT."""
    return name in _ROWS and _ROWS[name][2] == "text" and _ROWS[name][3] == "0"


def _text_of(name: str, value: object) -> str:
    """The value as the command line writes it."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, MultiplierTable):
        return name_of(value)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and _is_rate(name):
        return repr(value)
    try:
        if isinstance(value, (list, tuple)):
            return ":".join(str(operator.index(item)) for item in value)
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise _stoch.InvalidInput(
            f"SC parameter {name} = {value!r}: allowed is a whole number, a bool, a str or a sequence of whole numbers"
        ) from None


def _settings_in(given: Mapping[Any, Any], place: str) -> Iterator[str]:
    for key, value in given.items():
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise _stoch.InvalidInput(f"sc has a key {key!r}: allowed is a name, an operator or layers")
        name = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping):
            yield from _settings_in(value, name)
        elif value is not None:
            yield f"{name}={_setting_text(name, value)}"


def _setting_text(name: str, value: object) -> str:
    parameter = name.rpartition(".")[2]
    if isinstance(value, float) and not _is_rate(parameter) and value.is_integer():
        value = int(value)
    text = _text_of(parameter, value)
    if "," in text:
        raise _stoch.InvalidInput(f"SC setting {name} = {text}: a comma separates settings")
    return text


def settings_text(given: object) -> str:
    """What --sc takes, from a text or a dict of any nesting. A preset comes first, whatever its place in the dict."""
    if isinstance(given, Mapping):
        texts = sorted(_settings_in(given, ""), key=lambda text: not text.startswith("preset="))
        return check_text("sc", ",".join(texts))
    if not isinstance(given, str):
        raise _stoch.InvalidInput(f"sc has a {type(given).__name__}: allowed is a str or a dict of settings, a list of them or a ModelConfig")
    return check_text("sc", given)


def settings_of(sc: object) -> list[str]:
    """The same from one of them, or a list; None is no setting."""
    if sc is None:
        return []
    if isinstance(sc, (str, Mapping)) or not isinstance(sc, Iterable):
        return [settings_text(sc)]
    return [settings_text(each) for each in sc]


def _counts_text(value: object) -> str:
    """A file, digits that stand for counts of this process, or an array of counts."""
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else count_digits(value)


def _value_of(name: str, text: str) -> int | bool | str | tuple[int, ...] | None:
    kind = _ROWS[name][2]
    if kind == "integer":
        return int(text) if text else None  # it follows from others
    if kind == "flag":
        return text == "1"
    if kind == "list":
        return tuple(int(item) for item in text.split(":")) if text else ()
    return text


class ScConfig:
    """The parameters of one SC product; names and defaults are those of docs/sc_arithmetic.md.

    Immutable, hashable and picklable. A parameter that is None, or not given, has its default. counts (of gate="counts")
    takes an array of whole numbers [masks, V, V] or [V, V] too; a pickle of it is read where these counts are known.

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
            (_name_of(name), _counts_text(value) if name == "counts" else _text_of(name, value))
            for name, value in parameters.items()
            if value is not None
        ]
        for name, text in settings:
            check_text(name, text)
        handle = _stoch.Config(settings)
        object.__setattr__(self, "_handle", handle)
        object.__setattr__(self, "_text", handle.describe())

    @classmethod
    def parse(cls, text: str) -> ScConfig:
        """The configuration that `describe` wrote, or that --sc takes for one product."""
        return cls(**dict(_stoch.parse_config(check_text("text", text))))

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

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        yield from ((name, getattr(self, name)) for name, _ in _stoch.parse_config(self._text))

    def _repr_html_(self) -> str:
        changed = {name for name, _ in _stoch.parse_config(self._text)}
        values = {name: getattr(self.resolve(), name) for name in _ROWS}
        shown = {name: value for name, value in values.items() if name in changed or value not in ("", (), None, False)}
        return table([{"parameter": name, "value": value, "": "given" if name in changed else "default"} for name, value in shown.items()])

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
    try:
        return _cached(base, items)
    except TypeError:  # what cannot be hashed is no value of a parameter, which `replace` says
        return base.replace(**parameters)


class ModelConfig:
    """Which SC configuration every operator of a model runs in, from settings of --sc, or dicts of them, and files.

    mp      threshold table of mixed stream lengths; mp_normalise: "fixed", or "call" as published
    smooth  smoothing factors of `calibrate`
    mask    hybrid mask; mask_bits: bits of every integer entry

    >>> import stoch
    >>> config = stoch.ModelConfig("preset=halved", "down_proj.stoc_len=64")
    >>> config.describe()
    'preset=halved,down_proj.stoc_len=64'
    >>> config.is_batch_invariant, config.is_chunk_invariant
    (True, True)
    >>> stoch.ModelConfig({"preset": "halved", "down_proj": {"stoc_len": 64}}) == config
    True
    """

    __slots__ = ("_facts", "_files", "_settings")
    _facts: tuple[str, bool, bool]
    _files: tuple[str, str, str, str, int]
    _settings: tuple[str, ...]

    def __init__(
        self,
        *settings: Settings,
        mp: str | os.PathLike[str] | None = None,
        mp_normalise: str = "fixed",
        smooth: str | os.PathLike[str] | None = None,
        mask: str | os.PathLike[str] | None = None,
        mask_bits: int = 0,
    ) -> None:
        files = checked_files(mp, mp_normalise, smooth, mask, mask_bits)
        texts = tuple(settings_text(given) for given in settings)
        object.__setattr__(self, "_settings", texts)
        object.__setattr__(self, "_files", files)
        facts = _stoch.describe_model_config(list(texts), _stoch.ScFiles(*files))
        object.__setattr__(self, "_facts", facts)

    def describe(self) -> str:
        """The shortest settings that give this configuration; a file is named by the first digits of its sha256."""
        return self._facts[0]

    @property
    def settings(self) -> list[str]:
        """As it was made, without its files."""
        return list(self._settings)

    @property
    def has_files(self) -> bool:
        """Whether it refers to files: mp, smooth or mask."""
        return bool(self.file_options)

    @property
    def file_options(self) -> dict[str, str | int]:
        """Its files, as it was given them: those of mp, mp_normalise, smooth, mask and mask_bits that differ from none."""
        mp, normalise, smooth, mask, bits = self._files
        given: dict[str, str | int] = {}
        if mp:
            given |= {"mp": mp, "mp_normalise": normalise}
        if smooth:
            given["smooth"] = smooth
        if mask:
            given["mask"] = mask
            if bits:
                given["mask_bits"] = bits
        return given

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

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.describe()
        yield from self.file_options.items()

    def __reduce__(self) -> tuple[Any, tuple[tuple[str, ...], tuple[str, str, str, str, int]]]:
        return (_model_config, (self._settings, self._files))


def checked_files(mp: Any, mp_normalise: Any, smooth: Any, mask: Any, mask_bits: Any) -> tuple[str, str, str, str, int]:
    """As the engine takes them: "" where there is none."""
    return (
        name_or_none("mp", mp),
        check_text("mp_normalise", mp_normalise),
        name_or_none("smooth", smooth),
        name_or_none("mask", mask),
        check_whole("mask_bits", mask_bits, 32),
    )


def _model_config(settings: tuple[str, ...], files: tuple[str, str, str, str, int]) -> ModelConfig:
    mp, mp_normalise, smooth, mask, mask_bits = files
    return ModelConfig(
        *settings, mp=mp or None, mp_normalise=mp_normalise, smooth=smooth or None, mask=mask or None, mask_bits=mask_bits
    )


def model_config_of(
    sc: Settings | Sequence[Settings] | ModelConfig | None, files: Mapping[str, str | os.PathLike[str] | int | None]
) -> ModelConfig:
    """`sc` with these files, those that are not None."""
    given: dict[str, Any] = {name: value for name, value in files.items() if value is not None}
    if isinstance(sc, ModelConfig):
        if given:
            raise _stoch.InvalidInput(f"{', '.join(given)}: sc is a ModelConfig, which has files of its own")
        return sc
    return ModelConfig(*settings_of(sc), **given)


def files_of(config: ModelConfig | None) -> _stoch.ScFiles:
    """As the engine takes them."""
    return _stoch.ScFiles(*(("", "fixed", "", "", 0) if config is None else config._files))
