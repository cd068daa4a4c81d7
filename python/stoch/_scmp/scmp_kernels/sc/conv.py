# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products: every position of the output is a row, and rows may have streams of different lengths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from .matmul import sc_matmul

__all__ = ["conv2d_lowered_rows", "sc_conv2d"]

Tensor: TypeAlias = torch.Tensor
IntOrPair = int | Sequence[int]
Logger = Callable[..., None]


def _pair(value: IntOrPair) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value
    return int(first), int(second)


class _Geometry:
    """Sizes of one convolution."""

    def __init__(
        self, x: Tensor, weight: Tensor, stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair, groups: int
    ) -> None:
        if x.dim() != 4 or weight.dim() != 4:
            raise ValueError(f"sc_conv2d: x has {x.dim()} dimensions, weight {weight.dim()}: expected 4 each")
        if groups < 1 or x.shape[1] % groups or weight.shape[0] % groups or weight.shape[1] * groups != x.shape[1]:
            raise ValueError(
                f"sc_conv2d: x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit groups = {groups}"
            )
        self.kernel = (int(weight.shape[2]), int(weight.shape[3]))
        self.stride, self.padding, self.dilation = _pair(stride), _pair(padding), _pair(dilation)
        self.groups = groups
        self.size = tuple(
            (length + 2 * pad - reach * (width - 1) - 1) // step + 1
            for length, pad, reach, width, step in zip(
                x.shape[2:], self.padding, self.dilation, self.kernel, self.stride
            )
        )
        plain = self.kernel == self.stride == self.dilation == (1, 1) and self.padding == (0, 0)
        self.pointwise = plain and groups == 1
        self.depthwise = groups > 1 and groups == x.shape[1] == weight.shape[0]

    def columns(self, x: Tensor) -> Tensor:
        """[batch, channels * kernel, positions]"""
        return F.unfold(x, self.kernel, dilation=self.dilation, padding=self.padding, stride=self.stride)

    def rows(self, x: Tensor) -> Tensor:
        """[batch * positions, channels * kernel]"""
        if self.pointwise:
            return x.permute(0, 2, 3, 1).flatten(0, 2).contiguous()
        return self.columns(x).transpose(1, 2).flatten(0, 1).contiguous()

    def image(self, y: Tensor, batch: int) -> Tensor:
        """[batch, channels, height, width] of [batch * positions, channels]"""
        return y.reshape(batch, *self.size, y.shape[1]).permute(0, 3, 1, 2)


def _call_mp_logger(logger: Logger | None, stoc_len: int, n_rows: int, feature_fraction: float) -> None:
    """Tells a logger of two or of three arguments."""
    if logger is None:
        return
    kinds = inspect.Parameter
    try:
        parameters = inspect.signature(logger).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    if len(positional) >= 3 or any(p.kind == kinds.VAR_POSITIONAL for p in parameters):
        logger(stoc_len, n_rows, feature_fraction)
    else:
        logger(stoc_len, n_rows)


def _assign(a: Tensor, mp_config: Any, identity: dict[str, Any], mp_metric_logger: Logger | None) -> tuple[Any, list[int]]:
    """(rows by length, protected channels)"""
    from ..mp.config import AdaptiveMPConfig, MPConfig, adaptive_classify_rows, classify_rows_by_metric, compute_row_metric

    if isinstance(mp_config, AdaptiveMPConfig):
        operator, block = identity["operator"], identity["block_idx"]
        listed = mp_config.get_protected_channels(operator=operator, block_idx=block) or []
        protected = sorted({int(channel) for channel in listed if 0 <= int(channel) < a.shape[1]})
        rest = torch.ones(a.shape[1], dtype=torch.bool, device=a.device)
        rest[protected] = False
        name, sign = mp_config.get_dispatch_metric(operator)
        seen = a[:, rest] if protected else a
        metric = compute_row_metric(seen, name) if seen.shape[1] else a.new_zeros(a.shape[0])
        metric = -metric if sign < 0 else metric
        assignment = adaptive_classify_rows(metric, mp_config, **identity)
        if mp_metric_logger is not None:
            mp_metric_logger(metric, seen.shape[1] / a.shape[1] if a.shape[1] else 0.0)
        return assignment.level_row_indices, protected
    if isinstance(mp_config, MPConfig):
        metric = a.abs().amax(dim=-1)
        fractions = mp_config.level_fractions or []
        return classify_rows_by_metric(metric, mp_config.stoc_len_levels, fractions).level_row_indices, []
    raise TypeError(f"sc_conv2d: mp_config is a {type(mp_config).__name__}: allowed is an MPConfig or AdaptiveMPConfig")


def _mixed(
    a: Tensor,
    w: Tensor,
    settings: dict[str, Any],
    mp_config: Any,
    identity: dict[str, Any],
    mp_logger: Logger | None,
    mp_metric_logger: Logger | None,
) -> Tensor:
    """a @ w.T with a product for each length that a row of a got, and one for protected channels."""
    by_length, protected = _assign(a, mp_config, identity, mp_metric_logger)
    y = torch.zeros((a.shape[0], w.shape[0]), dtype=torch.float32, device=a.device)
    share = 1.0
    if protected:
        length = int(mp_config.protected_channel_stoc_len or max(mp_config.stoc_len_levels))
        y += sc_matmul(a[:, protected].contiguous(), w[:, protected].contiguous(), **{**settings, "stoc_len": length})
        _call_mp_logger(mp_logger, length, a.shape[0], len(protected) / a.shape[1])
        rest = [channel for channel in range(a.shape[1]) if channel not in set(protected)]
        share = len(rest) / a.shape[1]
        a, w = a[:, rest].contiguous(), w[:, rest].contiguous()
    for length, rows in by_length.items():
        if rows.numel() == 0 or a.shape[1] == 0:
            continue
        _call_mp_logger(mp_logger, int(length), int(rows.numel()), share)
        if length > 0:
            y[rows] += sc_matmul(a[rows].contiguous(), w, **{**settings, "stoc_len": int(length)})
    return y


@torch.no_grad()
def conv2d_lowered_rows(
    x: Tensor,
    weight: Tensor,
    *,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Tensor | None:
    """The rows that `sc_conv2d` classifies, [positions, channels * kernel]; None where it does not, with groups."""
    geometry = _Geometry(x, weight, stride, padding, dilation, groups)
    return geometry.rows(x.to(torch.float32)) if groups == 1 else None


@torch.no_grad()
def sc_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    granularity: str = "per_row",
    mode: str = "bipolar",
    sc_prec: int = 8,
    stoc_len: int | None = None,
    chunk_d: int = 0,
    halve_bipolar_stoc_len: bool = False,
    mp_config: Any = None,
    mp_operator: str | None = None,
    mp_block_idx: int | None = None,
    mp_total_blocks: int | None = None,
    mp_logger: Logger | None = None,
    mp_metric_logger: Logger | None = None,
    **sc_kwargs: Any,
) -> Tensor:
    """conv2d(x, weight, bias) with its products in stochastic computing, of the type of x.

    x is [batch, channels, height, width]. Settings are those of `sc_matmul`; a depthwise convolution has scales by row
    and no chunks. mp_config: every position gets a stream length by its largest magnitude, or as the configuration says
    of mp_operator (default: pw or conv) and the block; not with groups. mp_logger(length, rows[, share of channels]) is
    called for each length, mp_metric_logger(metric, share of channels) once.
    """
    if mp_config is not None and granularity != "per_row":
        raise ValueError(f"sc_conv2d: granularity = {granularity!r}: allowed with mp_config is per_row")
    geometry = _Geometry(x, weight, stride, padding, dilation, groups)
    batch, wide, w = x.shape[0], x.to(torch.float32), weight.to(torch.float32)
    settings: dict[str, Any] = {"mode": mode, "sc_prec": sc_prec, "stoc_len": stoc_len}
    settings |= {"halve_bipolar_stoc_len": halve_bipolar_stoc_len, **sc_kwargs}
    flat = {**settings, "granularity": granularity, "chunk_d": chunk_d}
    if geometry.depthwise:
        taps = w.flatten(1)
        a = geometry.columns(wide).reshape(batch * groups, taps.shape[1], -1).transpose(1, 2).contiguous()
        y = sc_matmul(a, taps[:, None].repeat(batch, 1, 1), granularity="per_row", **settings)
        out = y.reshape(batch, groups, *geometry.size)
    elif groups == 1 and mp_config is not None:
        default = "pw" if geometry.pointwise else "conv"
        identity = {"operator": default if mp_operator is None else mp_operator}
        identity |= {"block_idx": mp_block_idx, "total_blocks": mp_total_blocks}  # type: ignore[dict-item]
        y = _mixed(geometry.rows(wide), w.flatten(1), flat, mp_config, identity, mp_logger, mp_metric_logger)
        out = geometry.image(y, batch)
    else:
        parts = [
            geometry.image(sc_matmul(geometry.rows(part), kernel.flatten(1).contiguous(), **flat), batch)
            for part, kernel in zip(wide.chunk(groups, dim=1), w.chunk(groups, dim=0))
        ]
        out = torch.cat(parts, dim=1)
    if bias is not None:
        out = out + bias.to(torch.float32)[None, :, None, None]
    return out.to(x.dtype)
