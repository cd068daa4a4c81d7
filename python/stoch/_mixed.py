# SPDX-License-Identifier: Apache-2.0
"""Products whose stream lengths differ by row and chunk, with smoothing and protected channels.

Made of uniform products: rows of one length and one chunk are multiplied together and added in ascending order of
chunks, which is the order of the definition, so the bits are those of one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stoch import _arrays, _stoch
from stoch._config import ScConfig
from stoch._products import product, sums_of

_MAX_LENGTHS = 32

Lengths = np.ndarray[Any, np.dtype[np.int64]]
Channels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Plan:
    """What is multiplied how."""

    config: ScConfig
    smooth: Any  # [d] of a's library, or None
    lengths: Lengths | None  # [n, chunks or 1]
    protected: Channels | None  # ascending
    protected_len: int


def _reject(sentence: str) -> None:
    raise _stoch.InvalidInput(sentence)


def _check_config(config: ScConfig) -> None:
    for name, allowed in (("mode", "bipolar"), ("granularity", "per_row")):
        if getattr(config, name) != allowed:
            _reject(f"SC parameter {name} = {getattr(config, name)}: lengths and protected channels need {allowed}")
    if config.group_a != 1:
        _reject(f"SC parameter group_a = {config.group_a}: lengths and protected channels need 1")


def _chunks(d: int, config: ScConfig) -> list[tuple[int, int]]:
    size = int(config.chunk_d) or max(d, 1)
    return [(begin, min(begin + size, d)) for begin in range(0, d, size)]


def _check_lengths(lengths: Lengths, n: int, chunks: int, config: ScConfig) -> Lengths:
    if lengths.ndim == 1:
        lengths = lengths[:, None]
    if lengths.ndim != 2 or lengths.shape[0] != n or lengths.shape[1] not in (1, chunks):
        _reject(f"lengths {list(lengths.shape)}: expected [{n}] or [{n}, {chunks}]")
    full = 1 << int(config.sc_prec)
    most = full // 2 if config.halve else full
    if lengths.size and (lengths.min() < 0 or lengths.max() > most):
        _reject(f"lengths hold {lengths.min()}..{lengths.max()}: allowed is 0..{most}")
    if len(np.unique(lengths)) > _MAX_LENGTHS:
        _reject(f"lengths hold {len(np.unique(lengths))} different ones: allowed is {_MAX_LENGTHS}")
    within = lengths.shape[1] > 1 and bool((lengths != lengths[:, :1]).any())
    if within and int(config.chunk_d) == 0:
        _reject("SC parameter chunk_d = 0: lengths that differ within a row need chunks")
    if within and int(lengths.max()) == full and config.replace(stoc_len=full).resolve().rng_levels == full:
        _reject(
            f"streams of {full} cycles on a grid of {full} are not scrambled and shorter ones are, so lengths do not nest"
        )
    return lengths


def plan(
    a: Any,
    b: Any,
    config: ScConfig,
    smooth: Any,
    lengths: Any,
    rungs: Any,
    level_lens: Any,
    protected: Any,
    protected_len: int | None,
) -> Plan:
    """Checks everything before any work."""
    shape = _arrays.shape_of(a, "a")
    if len(shape) != 2 or len(_arrays.shape_of(b, "b")) != 2:
        _reject("a and b have 3 dimensions: smooth, lengths, rungs and protected take 2")
    if shape[1] != _arrays.shape_of(b, "b")[1]:
        _reject(f"a {list(shape)} and b {list(_arrays.shape_of(b, 'b'))} do not fit a @ b.T")
    _arrays.check_operand(a, "a")
    _arrays.check_operand(b, "b")
    places = [_arrays.cuda_ordinal(operand) for operand in (b, a)]
    if places[0] != places[1]:
        names = ["cpu" if ordinal < 0 else f"cuda:{ordinal}" for ordinal in places]
        _reject(f"b is on {names[0]}, a on {names[1]}")
    n, d = shape
    if lengths is not None and rungs is not None:
        _reject("lengths and rungs: give one of them")
    if (rungs is None) != (level_lens is None):
        _reject("rungs and level_lens: give both or none")
    if (protected is None) != (protected_len is None):
        _reject("protected and protected_len: give both or none")
    channels = None
    if protected is not None:
        _check_config(config)
        channels = np.unique(_arrays.integers(protected, "protected"))
        if channels.size and (channels[0] < 0 or channels[-1] >= d):
            _reject(f"protected lists channel {channels[-1] if channels[-1] >= d else channels[0]}: a has 0..{d - 1}")
    rest = d - (0 if channels is None else channels.size)
    if rungs is not None:
        index = _arrays.integers(rungs, "rungs")
        levels = _arrays.integers(level_lens, "level_lens").ravel()
        if index.size and (index.min() < 0 or index.max() >= levels.size):
            _reject(f"rungs hold {index.min()}..{index.max()}: level_lens has 0..{levels.size - 1}")
        lengths = levels[index]
    checked = None
    if lengths is not None:
        _check_config(config)
        checked = _check_lengths(_arrays.integers(lengths, "lengths"), n, len(_chunks(rest, config)), config)
    length = 0
    if protected_len is not None:
        length = int(config.replace(stoc_len=protected_len).resolve().stoc_len)
    if smooth is not None:
        factors = np.asarray(_arrays.to_host(smooth))
        if factors.shape != (d,):
            _reject(f"smooth {list(factors.shape)}: expected [{d}]")
        bad = ~(np.isfinite(factors) & (factors > 0))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            _reject(f"smooth[{at}] = {factors[at]}: allowed is a finite number above 0")
        smooth = _arrays.from_host(a, np.ascontiguousarray(factors, np.float32))
    return Plan(config, smooth, checked, channels, length)


def check_out(a: Any, b: Any, out: Any) -> None:
    """What a product of its own would refuse of `out`."""
    shape = (_arrays.shape_of(a, "a")[0], _arrays.shape_of(b, "b")[0])
    if _arrays.shape_of(out, "out") != shape:
        _reject(f"out {list(out.shape)}: expected {list(shape)}")
    if str(getattr(out, "dtype", "?")).rpartition(".")[2] != "float32":
        _reject(f"out is {str(getattr(out, 'dtype', '?')).rpartition('.')[2]}: allowed is float32")
    place, other = _arrays.cuda_ordinal(out), _arrays.cuda_ordinal(a)
    if place != other:
        names = ["cpu" if ordinal < 0 else f"cuda:{ordinal}" for ordinal in (place, other)]
        _reject(f"out is on {names[0]}, a on {names[1]}")
    if _arrays.library_of(out) != _arrays.library_of(a):
        _reject(f"out is of {_arrays.library_of(out)}, a of {_arrays.library_of(a)}: lengths and the like need the same")


def write(out: Any, y: Any) -> None:
    try:
        out[...] = y
    except (TypeError, ValueError) as error:
        raise _stoch.InvalidInput(f"out: {error}") from None


def _float(array: Any) -> Any:
    """float32 of an array that indexes like numpy's."""
    if _arrays.library_of(array) == "torch":
        return array.float()
    if hasattr(array, "astype"):
        return array.astype("float32", copy=False)
    return np.asarray(array, np.float32)


def _columns(array: Any, channels: Channels) -> Any:
    return array[:, _arrays.from_host(array, channels)]


def run(a: Any, b: Any, plan: Plan, *, counts: bool, stream: Any, check_finite: bool) -> tuple[Any, tuple[Any, ...]]:
    """The product, and the integer sums of its parts where they are wanted."""
    if _arrays.library_of(a) == "jax" and _arrays.cuda_ordinal(a) < 0:  # whose arrays cannot be added to
        smooth = None if plan.smooth is None else np.asarray(plan.smooth)
        y, sums = run(np.asarray(a), np.asarray(b), replace(plan, smooth=smooth), counts=counts, stream=None, check_finite=True)
        return _arrays.from_host(a, y), tuple(None if part is None else _arrays.from_host(a, part) for part in sums)
    a, b = _float(a), _float(b)
    if plan.smooth is not None:
        a, b = a / plan.smooth, b * plan.smooth
    if plan.protected is None or plan.protected.size == 0:
        y, sums = _ladder(a, b, plan.config, plan.lengths, counts, stream, check_finite)
        return y, (sums,)
    d = a.shape[1]
    others = np.setdiff1d(np.arange(d), plan.protected)
    special = plan.config.replace(stoc_len=plan.protected_len)
    first, first_sums = _ladder(
        _columns(a, plan.protected), _columns(b, plan.protected), special, None, counts, stream, check_finite
    )
    if others.size == 0:
        return first, (first_sums[:, :0], first_sums) if counts else ()
    rest, sums = _ladder(
        _columns(a, others), _columns(b, others), plan.config, plan.lengths, counts, stream, check_finite
    )
    return first + rest, (sums, first_sums)


def _ladder(
    a: Any, b: Any, config: ScConfig, lengths: Lengths | None, counts: bool, stream: Any, check_finite: bool
) -> tuple[Any, Any]:
    def one(left: Any, right: Any, how: ScConfig) -> tuple[Any, Any]:
        y = product(left, right, how, stream=stream, check_finite=check_finite)
        return y, sums_of(left, right, how) if counts else None

    if lengths is None:
        return one(a, b, config)
    n, d = a.shape
    spans = _chunks(d, config)
    y = _arrays.from_host(a, np.zeros((n, b.shape[0]), np.float32))
    sums: Any = _arrays.from_host(a, np.zeros((n, len(spans), b.shape[0]), np.int32)) if counts else None
    for c, (begin, end) in enumerate(spans):
        column = lengths[:, c if lengths.shape[1] > 1 else 0]
        for length in np.unique(column):
            if length == 0:
                continue
            how = config.replace(stoc_len=int(length), chunk_d=0)
            rows = _arrays.from_host(a, np.flatnonzero(column == length))
            part, part_sums = one(a[rows, begin:end], b[:, begin:end], how)
            y[rows] += part
            if counts:
                sums[rows, c] = part_sums[:, 0]
    return y, sums
