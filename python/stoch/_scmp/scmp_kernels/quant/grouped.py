# SPDX-License-Identifier: Apache-2.0
"""Codes and scales of groups of rows: docs/sc_arithmetic.md section 2, with a zero counted as positive."""

from __future__ import annotations

from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor

_SMALLEST = 1e-5


def _groups(x: Tensor, size: int) -> list[Tensor]:
    """x in groups of that many rows; the last may have fewer."""
    step = max(1, min(size, x.shape[0]))
    return [x[begin : begin + step] for begin in range(0, x.shape[0], step)]


def _over(x: Tensor, q_max: int) -> Tensor:
    """x / q_max in one division. Of a Python number torch would multiply by the reciprocal on CUDA."""
    return x / torch.full((), q_max, dtype=x.dtype, device=x.device)


def _signs(codes: Tensor) -> Tensor:
    one = torch.ones((), dtype=torch.int8, device=codes.device)
    return torch.where(codes < 0, -one, one)


def _grouped_symmetric_quant(x: Tensor, G: int, q_max: int) -> tuple[Tensor, Tensor, Tensor]:
    """(scales [rows], codes in -q_max..q_max as float, signs int8) of x, [rows, cols], in groups of G rows."""
    scales = torch.cat([_over(g.abs().amax().clamp(min=_SMALLEST), q_max).expand(g.shape[0]) for g in _groups(x, G)])
    codes = (x / scales[:, None]).round().clamp(-q_max, q_max)
    return scales, codes, _signs(codes)


def _grouped_asymmetric_quant(x: Tensor, G: int, q_max: int) -> tuple[Tensor, Tensor, Tensor]:
    """(scales [rows], zero points [rows], codes in 0..q_max as float) of x, [rows, cols], in groups of G rows."""
    scales, zeros = [], []
    for group in _groups(x, G):
        low = group.amin()
        scale = _over((group.amax() - low).clamp(min=_SMALLEST), q_max)
        scales.append(scale.expand(group.shape[0]))
        zeros.append((-low / scale).round().clamp(0, q_max).expand(group.shape[0]))
    scale_row, zp_row = torch.cat(scales), torch.cat(zeros)
    codes = (x / scale_row[:, None] + zp_row[:, None]).round().clamp(0, q_max)
    return scale_row, zp_row, codes


def _grouped_symmetric_quant_batched(x: Tensor, G: int, q_max: int) -> tuple[Tensor, Tensor, Tensor]:
    """The symmetric codes of every slice of x, [batch, rows, cols]: (scales [batch, rows], codes, signs)."""
    if x.dim() != 3:
        raise AssertionError(f"x {tuple(x.shape)}: expected three dimensions")
    parts = [_grouped_symmetric_quant(slice_, G, q_max) for slice_ in x]
    scales, codes, signs = (torch.stack(tensors) for tensors in zip(*parts))
    return scales, codes, signs


__all__ = ["_grouped_asymmetric_quant", "_grouped_symmetric_quant", "_grouped_symmetric_quant_batched"]
