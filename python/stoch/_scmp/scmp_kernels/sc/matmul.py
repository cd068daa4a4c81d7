# SPDX-License-Identifier: Apache-2.0
"""The one public product, by granularity."""

from __future__ import annotations

from typing import Any

import numpy as np
import stoch
import torch

from .. import trace
from ..quant.smoothquant import apply_smoothing
from .kernels import (
    _config,
    _float32,
    _sc_matmul_per_head_bipolar,
    _sc_matmul_per_row,
    _sc_matmul_per_row_batched,
    _sc_matmul_per_row_mlp,
    _sc_matmul_per_tensor,
    _semantics,
    _source_of,
)
from .sc_enable import sc_matmul_enable

_GRANULARITIES = ("per_tensor", "per_row", "per_head")
_MODES = ("bipolar", "unipolar")
_METHODS = ("auto", "compact", "table")


def _check(a: Any, b: Any, granularity: str, mode: str, method: str, chunk_d: int) -> None:
    if granularity not in _GRANULARITIES:
        raise ValueError(f"sc_matmul: granularity = {granularity!r}: allowed is {', '.join(_GRANULARITIES)}")
    if mode not in _MODES:
        raise ValueError(f"sc_matmul: mode = {mode!r}: allowed is {', '.join(_MODES)}")
    if method not in _METHODS:
        raise ValueError(f"sc_matmul: method = {method!r}: allowed is {', '.join(_METHODS)}")
    if a.device != b.device:
        raise ValueError(f"sc_matmul: b is on {b.device}, a on {a.device}: expected the same device")
    if chunk_d > 0:
        if granularity != "per_row" or mode != "bipolar" or a.dim() != 2 or b.dim() != 2:
            raise ValueError(
                f"sc_matmul: chunk_d = {chunk_d}: allowed is 0 but for granularity per_row, mode bipolar and 2-D operands, "
                f"got {granularity}, {mode} and {a.dim()}-D"
            )
        if method != "auto":
            raise ValueError(f"sc_matmul: chunk_d = {chunk_d}: allowed is 0 with method = {method!r}")
    if method != "auto" and granularity != "per_tensor":
        raise ValueError(f"sc_matmul: method = {method!r}: allowed with granularity per_tensor, got {granularity}")
    if granularity == "per_head":
        if a.dim() != 3 or b.dim() != 3:
            raise ValueError(f"sc_matmul: granularity per_head takes 3-D operands, got {a.dim()}-D and {b.dim()}-D")
        if mode != "bipolar":
            raise ValueError(f"sc_matmul: granularity per_head takes mode bipolar, got {mode}")


def _check_rungs(
    a: torch.Tensor, granularity: str, mode: str, chunk_d: int, full: tuple[int, int, int], rungs: Any, level_lens: Any
) -> tuple[Any, list[int]]:
    """(the table as integers on the host, level_lens); full: stream length, comparator grid, period."""
    if granularity != "per_row" or mode != "bipolar" or chunk_d <= 0 or level_lens is None:
        raise ValueError("sc_matmul: rung_table takes granularity per_row, mode bipolar, chunk_d above 0 and level_lens")
    levels, chunks = [int(length) for length in level_lens], -(-a.shape[1] // chunk_d)
    table = np.asarray(rungs.detach().cpu() if isinstance(rungs, torch.Tensor) else rungs)
    if table.shape != (a.shape[0], chunks):
        raise ValueError(f"sc_matmul: rung_table {table.shape}: expected {(a.shape[0], chunks)}, rows and chunks")
    if table.dtype.kind not in "iu" or table.size and not 0 <= table.min() <= table.max() < len(levels):
        raise ValueError(f"sc_matmul: rung_table: allowed are whole numbers 0..{len(levels) - 1}, indices of level_lens")
    length, grid, period = full
    if not levels or max(levels) > length:
        raise ValueError(f"sc_matmul: level_lens {levels}: allowed is at most stoc_len = {length}")
    if max(levels) == grid == period:
        raise ValueError(
            f"sc_matmul: level_lens {levels}: streams of {period} cycles on a grid of {period} are not scrambled and "
            "shorter ones are, so lengths do not nest"
        )
    return table, levels


def _record(a: torch.Tensor, b: torch.Tensor, stoc_len: int, **facts: Any) -> None:
    """One call for the trace."""
    batch = a.shape[0] if a.dim() == 3 else 1
    trace.record_matmul(
        rows=a.shape[-2], d_in=a.shape[-1], d_out=b.shape[-2], batch=batch, stoc_len=stoc_len, **facts
    )


def _record_rungs(a: torch.Tensor, b: torch.Tensor, chunk_d: int, table: Any, levels: list[int], facts: Any) -> None:
    """A call for each length, with the rows and channels that have it."""
    for rung, length in enumerate(levels):
        for chunk in range(table.shape[1]):
            rows = int((table[:, chunk] == rung).sum())
            if rows:
                width = min(chunk_d, a.shape[1] - chunk * chunk_d)
                trace.record_matmul(rows=rows, d_in=width, d_out=b.shape[0], batch=1, stoc_len=length, **facts)


@torch.no_grad()
def sc_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    granularity: str = "per_row",
    *,
    mode: str = "bipolar",
    sc_prec: int = 8,
    stoc_len: int | None = None,
    chunk_d: int = 0,
    group_a: int = 1,
    group_b: int = 1,
    rng_levels: int | None = None,
    config: Any = None,
    halve_bipolar_stoc_len: bool = False,
    smooth_scales: torch.Tensor | None = None,
    method: str = "auto",
    rung_table: torch.Tensor | None = None,
    level_lens: Any = None,
) -> torch.Tensor:
    """a @ b.T in stochastic computing, float32, on the device of a. Errors: ValueError naming what is not allowed."""
    _check(a, b, granularity, mode, method, chunk_d)
    halve = halve_bipolar_stoc_len and mode == "bipolar"
    if halve:
        halved = 1 << (sc_prec - 1)
        longest = max(stoc_len or 0, rng_levels or 0)
        if longest > halved and _semantics() == "published-2026":
            raise ValueError(f"sc_matmul: halve_bipolar_stoc_len with {longest} cycles or levels: allowed is {halved}")
        stoc_len = halved if stoc_len is None else stoc_len
        rng_levels = halved if rng_levels is None else rng_levels
    period = 1 << sc_prec
    length, grid = stoc_len or period, rng_levels or period
    facts = {"sc_prec": sc_prec, "mode": mode, "granularity": granularity, "halve": halve, "rng_levels": grid}
    facts |= {"chunk_d": chunk_d, "smoothed": smooth_scales is not None}
    if (rung_table is None) != (level_lens is None):
        raise ValueError("sc_matmul: rung_table and level_lens: expected both or none")
    if rung_table is not None:
        table, levels = _check_rungs(a, granularity, mode, chunk_d, (length, grid, period), rung_table, level_lens)
        if trace._ENABLED:
            _record_rungs(a, b, chunk_d, table, levels, facts)
        chosen = _config(granularity, mode, sc_prec, stoc_len, rng_levels, config, chunk_d, group_a, group_b)
        if _source_of(config, sc_prec) is None:
            raise ValueError("sc_matmul: rung_table: allowed are configs whose channels are alike")
        left, right = _float32(a), _float32(b)
        if smooth_scales is not None:
            left, right = apply_smoothing(left, right, smooth_scales)
        result = stoch.sc_matmul(left, right, chosen, rungs=table, level_lens=levels)
        assert isinstance(result, torch.Tensor)
        return result
    if trace._ENABLED:
        _record(a, b, length, **facts)
    if smooth_scales is not None:
        a, b = apply_smoothing(a, b, smooth_scales)
    if method != "auto":
        if length != period or grid != period:
            raise ValueError(f"sc_matmul: method = {method!r}: allowed with streams and levels of {period}")
        high_a, low_a, high_b, low_b = (float(edge) for x in (a, b) for edge in (x.max(), x.min()))
        how = "cycle_by_cycle" if method == "compact" else "k_shortcut"
        return sc_matmul_enable(a, b, high_a, low_a, high_b, low_b, mode, sc_prec, config, how)
    shared: dict[str, Any] = {"sc_prec": sc_prec, "stoc_len": stoc_len, "rng_levels": rng_levels, "config": config}
    if granularity == "per_tensor":
        return _sc_matmul_per_tensor(a, b, mode=mode, **shared)
    if granularity == "per_head":
        return _sc_matmul_per_head_bipolar(a, b, **shared)
    groups: dict[str, Any] = {"mode": mode, "group_a": group_a, "group_b": group_b}
    if chunk_d > 0:
        return _sc_matmul_per_row_mlp(a, b, chunk_d=chunk_d, **groups, **shared)
    if a.dim() == 3:
        return _sc_matmul_per_row_batched(a, b, **groups, **shared)
    return _sc_matmul_per_row(a, b, **groups, **shared)
