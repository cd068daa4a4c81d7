# SPDX-License-Identifier: Apache-2.0
"""Rows to levels, by the numbers of a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor

_ROW_METRIC_EPS = 1e-12
ROW_METRIC_NAMES = ("amax", "l2", "crest")
_SMALLEST_RANGE = 1e-8  # below it all rows are alike, and get the first level


@dataclass
class RowAssignment:
    """row_levels [rows]: the index of each row's level; level_row_indices: the rows of each stream length."""

    row_levels: Tensor
    level_row_indices: dict[int, Tensor]


def compute_row_metric(x: Tensor, name: str) -> Tensor:
    """Of every row (the last axis): amax, its largest magnitude; l2, its norm; crest, the first by the second."""
    if name == "amax":
        return x.abs().amax(dim=-1)
    if name == "l2":
        return x.to(torch.float32).square().sum(dim=-1).sqrt()
    if name == "crest":
        largest, norm = (compute_row_metric(x.to(torch.float32), other) for other in ("amax", "l2"))
        return largest / (norm + _ROW_METRIC_EPS)
    raise ValueError(f"metric {name!r}: allowed is {', '.join(ROW_METRIC_NAMES)}")


def _assignment(row_levels: Tensor, lengths: Sequence[int]) -> RowAssignment:
    return RowAssignment(row_levels, {length: torch.where(row_levels == i)[0] for i, length in enumerate(lengths)})


def _normalised(metric: Tensor) -> Tensor | None:
    """From 0 to 1 over the rows; None where they are alike."""
    low, high = metric.min(), metric.max()
    return None if float(high - low) < _SMALLEST_RANGE else (metric - low) / (high - low)


def _classify_all_rows_to_level(metric: Tensor, stoc_len_levels: Sequence[int], level_idx: int) -> RowAssignment:
    """All rows at one level."""
    levels = torch.full((metric.shape[0],), int(level_idx), dtype=torch.long, device=metric.device)
    return _assignment(levels, stoc_len_levels)


def _classify_rows_by_thresholds(
    metric_norm: Tensor, stoc_len_levels: Sequence[int], thresholds: Sequence[float]
) -> RowAssignment:
    """The level of a row is the first whose threshold it reaches, else the last."""
    if len(thresholds) != max(len(stoc_len_levels) - 1, 0):
        raise ValueError(f"{len(thresholds)} thresholds for {len(stoc_len_levels)} levels: expected one less")
    limits = metric_norm.new_tensor(list(thresholds))
    below = (metric_norm[:, None] < limits[None]).to(torch.long)
    return _assignment(below.cumprod(dim=1).sum(dim=1), stoc_len_levels)


def _classify_with_free_boundaries(
    metric: Tensor, boundaries: Tensor, stoc_len_levels: Sequence[int]
) -> RowAssignment:
    """The level of a row is the number of boundaries that it is below, of the metric from 0 to 1."""
    norm = _normalised(metric)
    if norm is None:
        return _classify_all_rows_to_level(metric, stoc_len_levels, 0)
    limits = boundaries.to(metric.device, torch.float32)
    return _assignment((norm[:, None] < limits[None]).sum(dim=1), stoc_len_levels)


def _classify_by_fractions(metric: Tensor, stoc_len_levels: Sequence[int], fractions: Sequence[float]) -> RowAssignment:
    """The largest rows get the first level, as many as its fraction says, rounded; the last level gets the rest."""
    order = metric.argsort(descending=True)
    total = metric.shape[0]
    levels = torch.empty(total, dtype=torch.long, device=metric.device)
    by_length: dict[int, Tensor] = {}
    begin = 0
    for i, (length, fraction) in enumerate(zip(stoc_len_levels, fractions)):
        rest = total - begin
        count = rest if i == len(stoc_len_levels) - 1 else min(round(fraction * total), rest)
        rows = order[begin : begin + count]
        levels[rows] = i
        by_length[length] = rows
        begin += count
    return RowAssignment(levels, by_length)


def classify_rows_by_metric(metric: Tensor, stoc_len_levels: list[int], level_fractions: list[float]) -> RowAssignment:
    """Levels by rank: the rows of the largest metric get the first."""
    return _classify_by_fractions(metric, stoc_len_levels, level_fractions)
