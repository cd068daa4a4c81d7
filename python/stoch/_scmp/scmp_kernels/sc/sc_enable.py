# SPDX-License-Identifier: Apache-2.0
"""Products per tensor over the whole period, two ways in plain torch: by tables, and cycle by cycle.

The second knows no tables: it walks the streams as the hardware would, and is what the first, and the engine, can be
held against.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from ..quant.fused import fused_quantize_bipolar, fused_quantize_unipolar
from ._tables import _gain, _sequences, _sums, build_enable_tables
from .config_helpers import make_sobol_simple_config

__all__ = ["sc_matmul_enable"]

Tensor: TypeAlias = torch.Tensor

_METHODS = ("k_shortcut", "cycle_by_cycle")


def _walk(rng_a: Tensor, rng_b: Tensor, ba: Tensor, bb: Tensor, sa: Tensor | None, sb: Tensor | None) -> Tensor:
    """int32 [n, m]: in every cycle that side a is 1, side b takes its next value."""
    channels = torch.arange(ba.shape[1], device=ba.device)
    taken = torch.zeros_like(ba, dtype=torch.int64)
    acc = torch.zeros((ba.shape[0], bb.shape[0]), dtype=torch.int32, device=ba.device)
    for cycle in range(rng_a.shape[1]):
        enabled = ba > rng_a[:, cycle]
        ones = bb[None] > rng_b[channels, taken.clamp(max=rng_b.shape[1] - 1)][:, None]
        counts = (ones & enabled[:, None]).to(torch.int32)
        if sa is not None and sb is not None:
            counts = counts * (sa.to(torch.int32)[:, None] * sb.to(torch.int32)[None])
        acc += counts.sum(dim=2, dtype=torch.int32)
        taken += enabled
    return acc


@torch.no_grad()
def sc_matmul_enable(
    a: Tensor,
    b: Tensor,
    max_fp_a: float,
    min_fp_a: float,
    max_fp_b: float | None = None,
    min_fp_b: float | None = None,
    mode: str = "bipolar",
    sc_prec: int = 8,
    config: dict[str, Any] | None = None,
    method: str = "k_shortcut",
) -> Tensor:
    """a @ b.T, [n, m] or [batch, n, m] float32; the range of b is that of a unless given. Values outside are clamped."""
    if method not in _METHODS:
        raise ValueError(f"sc_matmul_enable: method = {method!r}: allowed is {', '.join(_METHODS)}")
    if mode not in ("bipolar", "unipolar"):
        raise ValueError(f"sc_matmul_enable: mode = {mode!r}: allowed is bipolar, unipolar")
    if a.dim() not in (2, 3) or a.dim() != b.dim():
        raise ValueError(f"sc_matmul_enable: a has {a.dim()} dimensions, b {b.dim()}: expected 2 or 3 each")
    if a.shape[-1] != b.shape[-1] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"sc_matmul_enable: a {tuple(a.shape)} and b {tuple(b.shape)} do not fit a @ b.T")
    high_b = max_fp_a if max_fp_b is None else max_fp_b
    low_b = min_fp_a if min_fp_b is None else min_fp_b
    if a.dim() == 3:
        ranges = (max_fp_a, min_fp_a, high_b, low_b)
        return torch.stack([sc_matmul_enable(x, y, *ranges, mode, sc_prec, config, method) for x, y in zip(a, b)])
    a, b = a.to(torch.float32), b.to(torch.float32)
    d, period = a.shape[1], 1 << sc_prec
    chosen = make_sobol_simple_config(d, d, sc_prec) if config is None else config
    rng_a, rng_b = _sequences(chosen, sc_prec, d, a.device)
    sa = sb = None
    if mode == "bipolar":
        q_max = (1 << (sc_prec - 1)) - 1
        ba, sa, scale_a = fused_quantize_bipolar(a, max(abs(max_fp_a), abs(min_fp_a)), sc_prec)
        bb, sb, scale_b = fused_quantize_bipolar(b, max(abs(high_b), abs(low_b)), sc_prec)
    else:
        q_max = period - 1
        ba, scale_a, zero_a, sums_a = fused_quantize_unipolar(a, max_fp_a, min_fp_a, sc_prec, compute_sum=True)
        bb, scale_b, zero_b, sums_b = fused_quantize_unipolar(b, high_b, low_b, sc_prec, compute_sum=True)
    if method == "cycle_by_cycle":
        acc = _walk(rng_a, rng_b, ba, bb, sa, sb)
    else:
        acc = _sums(*build_enable_tables(rng_a, rng_b, sc_prec), ba, bb, sa, sb)
    y = acc.to(torch.float32) * _gain(float(q_max * q_max), period)
    if mode == "unipolar":
        assert sums_a is not None and sums_b is not None
        y = y + (-zero_b * sums_a[:, None] - zero_a * sums_b[None] + d * zero_a * zero_b)
    scale = torch.tensor(scale_a, dtype=torch.float32) * torch.tensor(scale_b, dtype=torch.float32)
    return y * scale.to(y.device)
