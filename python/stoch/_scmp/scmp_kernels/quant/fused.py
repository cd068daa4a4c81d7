# SPDX-License-Identifier: Apache-2.0
"""From floats to comparator boundaries: docs/sc_arithmetic.md section 2.

A boundary is the code on the grid of rng_levels comparator values. The original's kernels in Triton have no
counterpart; their launchers are these functions, on any device.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import torch

from .grouped import _over

Tensor: TypeAlias = torch.Tensor

_SMALLEST = 1e-5


def _resolve_rng_levels(sc_prec: int, rng_levels: int | None) -> int:
    """The comparator grid: 2**sc_prec unless given."""
    return (1 << sc_prec) if rng_levels is None else int(rng_levels)


def _boundary(codes: Tensor, q_max: int, levels: int) -> Tensor:
    """rint(code * levels / q_max) of codes that are not negative, in whole numbers: q_max is odd, so there are no ties."""
    whole = codes.to(torch.int64)
    return torch.div(2 * whole * levels + q_max, 2 * q_max, rounding_mode="floor")


def _bipolar(codes: Tensor, q_max: int, levels: int) -> tuple[Tensor, Tensor]:
    return _boundary(codes.abs(), q_max, levels).to(torch.int16), torch.sign(codes).to(torch.int8)


@functools.lru_cache(maxsize=8)
def _quant_dummy(device: torch.device) -> Tensor:
    """One int8 element on a device, for an argument that is not read."""
    return torch.empty(1, dtype=torch.int8, device=device)


def fused_quantize_bipolar_perrow(
    fp_tensor: Tensor, sc_prec: int, rng_levels: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(boundary int16, sign int8, scale float32 [rows]), a scale for each row."""
    q_max = (1 << (sc_prec - 1)) - 1
    scale = _over(fp_tensor.abs().amax(dim=1).clamp(min=_SMALLEST), q_max)
    codes = (fp_tensor / scale[:, None]).round().clamp(-q_max, q_max)
    return (*_bipolar(codes, q_max, _resolve_rng_levels(sc_prec, rng_levels)), scale.to(torch.float32))


def fused_quantize_bipolar(
    fp_tensor: Tensor, abs_max: float, sc_prec: int, rng_levels: int | None = None
) -> tuple[Tensor, Tensor, float]:
    """(boundary int16, sign int8, scale), one scale from the given largest magnitude."""
    q_max = (1 << (sc_prec - 1)) - 1
    scale = torch.tensor(max(abs_max, _SMALLEST), dtype=torch.float32) / q_max
    codes = (fp_tensor / scale.to(fp_tensor.device)).round().clamp(-q_max, q_max)
    return (*_bipolar(codes, q_max, _resolve_rng_levels(sc_prec, rng_levels)), float(scale))


def fused_quantize_unipolar(
    fp_tensor: Tensor,
    fp_max: float,
    fp_min: float,
    sc_prec: int,
    compute_sum: bool = False,
    rng_levels: int | None = None,
) -> tuple[Tensor, float, float, Tensor | None]:
    """(boundary int32, scale, zero point, sums of the codes of each row or None), from the given range."""
    q_max = (1 << sc_prec) - 1
    low = torch.tensor(fp_min, dtype=torch.float32)
    scale = (torch.tensor(fp_max, dtype=torch.float32) - low).clamp(min=_SMALLEST) / q_max
    zero = (-low / scale).round().clamp(0, q_max)
    codes = (fp_tensor / scale.to(fp_tensor.device) + zero.to(fp_tensor.device)).round().clamp(0, q_max)
    boundary = _boundary(codes, q_max, _resolve_rng_levels(sc_prec, rng_levels)).to(torch.int32)
    return boundary, float(scale), float(zero), codes.sum(dim=1) if compute_sum else None


__all__ = ["_quant_dummy", "fused_quantize_bipolar", "fused_quantize_bipolar_perrow", "fused_quantize_unipolar"]
