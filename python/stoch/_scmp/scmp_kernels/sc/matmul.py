# SPDX-License-Identifier: Apache-2.0
"""The one public product, by granularity."""

from __future__ import annotations

from typing import Any

import stoch
import torch

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
)

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
    if halve_bipolar_stoc_len and mode == "bipolar":
        halved = 1 << (sc_prec - 1)
        longest = max(stoc_len or 0, rng_levels or 0)
        if longest > halved and _semantics() == "published-2026":
            raise ValueError(f"sc_matmul: halve_bipolar_stoc_len with {longest} cycles or levels: allowed is {halved}")
        stoc_len = halved if stoc_len is None else stoc_len
        rng_levels = halved if rng_levels is None else rng_levels
    if smooth_scales is not None:
        a, b = apply_smoothing(a, b, smooth_scales)
    if rung_table is not None:
        if granularity != "per_row" or mode != "bipolar" or level_lens is None:
            raise ValueError("sc_matmul: rung_table takes granularity per_row, mode bipolar and level_lens")
        chosen = _config(granularity, mode, sc_prec, stoc_len, rng_levels, config, chunk_d, group_a, group_b)
        result = stoch.sc_matmul(_float32(a), _float32(b), chosen, rungs=rung_table, level_lens=level_lens)
        assert isinstance(result, torch.Tensor)
        return result
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
