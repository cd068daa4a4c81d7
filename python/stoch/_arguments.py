# SPDX-License-Identifier: Apache-2.0
"""What arguments of Python functions have to be: errors name the argument, what it is and what is allowed."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

from stoch import _stoch


def check_text(name: str, value: object) -> str:
    """A str that UTF-8 can write: the engine takes no other."""
    if not isinstance(value, str):
        raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _stoch.InvalidInput(f"{name} has half a surrogate pair at {error.start}: allowed is valid Unicode") from None
    return value


def check_name(name: str, value: object) -> str:
    """A name or a path, which is not empty: defaults that mean "none" are not given as an empty one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a str or a path")
    if not value:
        raise _stoch.InvalidInput(f"{name} is empty")
    if "\0" in check_text(name, value):
        raise _stoch.InvalidInput(f"{name} holds a NUL character")
    return value


def name_or_none(name: str, value: object) -> str:
    """The same, "" for None."""
    return "" if value is None else check_name(name, value)


def check_whole(name: str, value: Any, bits: int = 64) -> int:
    """What the engine's integers hold."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a whole number") from None
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise _stoch.InvalidInput(f"{name} is a number that {bits} bits do not hold")
    return number


def check_count(name: str, value: Any, most: int | None = None) -> int:
    """A whole number from 0 on, at most `most`."""
    number = check_whole(name, value)
    if number < 0 or (most is not None and number > most):
        raise _stoch.InvalidInput(f"{name} = {number}: allowed is {'0 or more' if most is None else f'0 to {most}'}")
    return number


def check_number(name: str, value: Any) -> float:
    """A number, of numpy or torch too; no text of one."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of torch that is not one number
        raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a number") from None
    except OverflowError:
        raise _stoch.InvalidInput(f"{name} is a number that no float holds") from None


def check_flag(name: str, value: Any) -> bool:
    """True or False, of numpy too; "no" is neither."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is True or False")


def check_mapping(name: str, value: Any, allowed: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is {allowed}")
    return value


def check_texts(name: str, value: Any) -> list[str]:
    """A list of str; a str by itself is not one of its letters."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a list of str")
    return [check_text(name, each) for each in value]
