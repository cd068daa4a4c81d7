# SPDX-License-Identifier: Apache-2.0
"""One uniform product: a configuration for all of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoch import _arrays, _stoch
from stoch._config import ScConfig


def _result_shape(a: Any, b: Any) -> tuple[int, ...]:
    left = _arrays.shape_of(a, "a")
    right = _arrays.shape_of(b, "b")
    if len(left) not in (2, 3):
        raise _stoch.InvalidInput(f"a has {len(left)} dimensions: allowed is 2 or 3")
    if len(right) != len(left):
        raise _stoch.InvalidInput(f"b has {len(right)} dimensions, a {len(left)}: expected as many")
    if left[-1] != right[-1] or left[:-2] != right[:-2]:
        raise _stoch.InvalidInput(f"a {list(left)} and b {list(right)} do not fit a @ b.T")
    return (*left[:-1], right[-2])


def product(a: Any, b: Any, config: ScConfig, *, out: Any = None, stream: Any = None, check_finite: bool = False) -> Any:
    """One uniform product."""
    shape = _result_shape(a, b)
    ordinal = _arrays.cuda_ordinal(a)
    target = _arrays.empty(a, shape) if out is None else out
    if out is None and shape[-1] == 0:  # b has no rows: nothing is computed
        return _arrays.finished(a, target)
    if ordinal >= 0:
        a, b = _arrays.as_float(a, "a"), _arrays.as_float(b, "b")
    _stoch.product(
        a,
        b,
        config._handle,
        target,
        _arrays.caller_stream(a, ordinal, stream),
        check_finite,
    )
    return _arrays.finished(a, target) if out is None else out


def sums_of(a: Any, b: Any, config: ScConfig) -> Any:
    """The integer sums of one uniform product, int32 [n, chunks, m] or [batch, n, chunks, m]."""
    shape = _result_shape(a, b)
    d = _arrays.shape_of(a, "a")[-1]
    size = int(config.chunk_d) or max(d, 1)
    sums = np.zeros((*shape[:-1], -(-d // size), shape[-1]), np.int32)
    _stoch.counts(_arrays.to_host(a), _arrays.to_host(b), config._handle, sums)
    return _arrays.from_host(a, sums)
