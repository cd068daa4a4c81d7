# SPDX-License-Identifier: Apache-2.0
"""Binary multipliers given as tables of all their products."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import numpy as np

from stoch import _arrays, _stoch
from stoch._rows import flatten

_DIGITS = 16  # of the sha256, in descriptions
_MOST = 1 << 17  # an entry
_MOST_COUNT = 32767  # an entry of counts


class MultiplierTable:
    """A table for ScConfig(gate="table", table=...), from `multiplier_table`. Its identity is its sha256."""

    __slots__ = ("_code", "_handle")

    def __init__(self, handle: _stoch.Multiplier, code: str) -> None:
        self._handle = handle
        self._code = code

    @property
    def sha256(self) -> str:
        """Of the entries as little-endian int32, in numeric order of the operands."""
        return self._handle.sha256

    @property
    def code(self) -> str:
        """How operands index it: 'signed', 'sign_magnitude' or 'unsigned'."""
        return str(self.metrics()["table_code"])

    def metrics(self) -> dict[str, Any]:
        """How far it is from the exact product, over all pairs (`all.*`) and over those of its code (`used.*`).

        mae, wce, mre, ep, mse, bias; zero_row_entries, zero_column_entries, asymmetric_pairs; kernel.
        """
        return flatten(json.loads(self._handle.json(self._code)))

    def __repr__(self) -> str:
        return f"MultiplierTable({self.sha256[:_DIGITS]}, {self.code})"


def multiplier_table(source: Any, *, code: str = "", order: str = "") -> MultiplierTable:
    """A multiplier from a file (.h, .bin, .txt or .npy), or from integers [256, 256], row = activation.

    code is 'signed', 'sign_magnitude' or 'unsigned', order (of signed operands) 'byte', 0..127 and then -128..-1, or
    'numeric'. "" is as the file says; an array of an unsigned type is unsigned, any other signed in byte order.

    >>> import numpy as np, stoch
    >>> exact = stoch.multiplier_table(np.outer(np.arange(-128, 128), np.arange(-128, 128)), order="numeric")
    >>> exact.code, exact.metrics()["all.mae"]
    ('signed', 0.0)
    >>> a = np.float32([[1, -1, 0.5]])
    >>> stoch.sc_matmul(a, a, gate="table", table=exact).round(2)
    array([[2.25]], dtype=float32)
    """
    if isinstance(source, (str, os.PathLike)):
        return MultiplierTable(_stoch.open_multiplier(os.fspath(source), code, order), code)
    entries = _arrays.integers(source, "table")
    if entries.shape != (256, 256):
        raise _stoch.InvalidInput(f"table is {list(entries.shape)}: allowed is [256, 256]")
    kind = np.asarray(_arrays.to_host(source)).dtype.kind
    if int(np.abs(entries).max()) > _MOST:
        raise _stoch.InvalidInput(f"table has entries up to {int(np.abs(entries).max())}: allowed is {_MOST}")
    npy = io.BytesIO()
    np.save(npy, entries.astype(np.uint16 if kind == "u" and int(entries.max()) < 1 << 16 else np.int32))
    return MultiplierTable(_stoch.parse_multiplier(npy.getvalue(), code, order), code)


def name_of(table: MultiplierTable) -> str:
    """What stands for the table in a configuration's text."""
    return table.sha256[:_DIGITS]


def count_digits(source: Any) -> str:
    """Keeps counts [masks, V, V] or [V, V] for this process; what stands for them in a configuration's text."""
    entries = _arrays.integers(source, "counts")
    most = int(np.abs(entries).max()) if entries.size else 0
    if most > _MOST_COUNT:
        raise _stoch.InvalidInput(f"counts has entries up to {most}: allowed is {_MOST_COUNT}")
    npy = io.BytesIO()
    np.save(npy, entries.astype(np.int32))
    return str(_stoch.keep_counts(npy.getvalue()))
