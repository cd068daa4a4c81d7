# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant: a diagonal between two operands that leaves their product as it is.

Source: G. Xiao et al., SmoothQuant, ICML 2023.
"""

from __future__ import annotations

import torch


def _check_width(scales: torch.Tensor, *operands: torch.Tensor) -> None:
    if scales.dim() != 1:
        raise ValueError(f"smooth_scales {tuple(scales.shape)}: expected one dimension")
    for operand in operands:
        if operand.shape[-1] != scales.shape[0]:
            raise ValueError(f"smooth_scales {tuple(scales.shape)} do not fit an operand {tuple(operand.shape)}")


@torch.no_grad()
def accumulate_act_scales(x: torch.Tensor, running: torch.Tensor | None = None) -> torch.Tensor:
    """max |x| of every channel (the last axis), and of what was seen before."""
    seen = x.detach().abs().reshape(-1, x.shape[-1]).amax(dim=0)
    return seen if running is None else torch.maximum(running.to(seen), seen)


@torch.no_grad()
def compute_smooth_scales(
    act_scales: torch.Tensor, weight: torch.Tensor, alpha: float = 0.5, eps: float = 1e-5
) -> torch.Tensor:
    """act_scales**alpha / (max |weight| of a channel)**(1 - alpha), none of the three below eps."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha = {alpha}: allowed is 0..1")
    if weight.dim() != 2:
        raise ValueError(f"weight {tuple(weight.shape)}: expected two dimensions")
    _check_width(act_scales, weight)
    left = act_scales.to(weight).clamp(min=eps)
    right = weight.abs().amax(dim=0).clamp(min=eps)
    return (left.pow(alpha) / right.pow(1.0 - alpha)).clamp(min=eps)


@torch.no_grad()
def apply_smoothing(
    a: torch.Tensor, b: torch.Tensor, smooth_scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(a / smooth_scales, b * smooth_scales)"""
    _check_width(smooth_scales, a, b)
    return a / smooth_scales.to(a), b * smooth_scales.to(b)


@torch.no_grad()
def apply_smoothing_offline(weight: torch.Tensor, smooth_scales: torch.Tensor) -> torch.Tensor:
    """weight * smooth_scales, for operands that are divided later."""
    _check_width(smooth_scales, weight)
    return weight * smooth_scales.to(weight)
