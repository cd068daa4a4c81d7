# SPDX-License-Identifier: Apache-2.0
"""Which stream lengths the rows of a product get."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ._adaptive import AdaptiveMPConfig, _require_descending
from ._classify import (
    ROW_METRIC_NAMES,
    RowAssignment,
    _classify_all_rows_to_level,
    _classify_by_fractions,
    _classify_rows_by_thresholds,
    _classify_with_free_boundaries,
    _normalised,
    classify_rows_by_metric,
    compute_row_metric,
)
from ._logs import AutoMPBudgetLogger, MetricProfiler, MPDistributionLogger
from ._table import (
    _band_widths,
    _bucket_index,
    _extract_group_levels,
    _extract_thresholds,
    _parse_bucket_key,
    _parse_protected_channel_key,
    residual_chunk_widths,
)

__all__ = [
    "ROW_METRIC_NAMES",
    "AdaptiveMPConfig",
    "AutoMPBudgetLogger",
    "FreeBoundaryMPConfig",
    "MPConfig",
    "MPDistributionLogger",
    "MetricProfiler",
    "RangeMPConfig",
    "RowAssignment",
    "_band_widths",
    "_bucket_index",
    "_classify_rows_by_thresholds",
    "_extract_group_levels",
    "_extract_thresholds",
    "_parse_bucket_key",
    "_parse_protected_channel_key",
    "adaptive_classify_rows",
    "classify_groups_by_range",
    "classify_rows_by_metric",
    "compute_row_metric",
    "get_current_block_idx",
    "residual_chunk_widths",
    "set_current_block_idx",
]

Tensor: TypeAlias = torch.Tensor

_CURRENT_BLOCK_IDX = 0


def set_current_block_idx(i: int) -> None:
    """The block whose boundaries a FreeBoundaryMPConfig takes where none is given."""
    global _CURRENT_BLOCK_IDX
    _CURRENT_BLOCK_IDX = int(i)


def get_current_block_idx() -> int:
    """What was set."""
    return _CURRENT_BLOCK_IDX


@dataclass
class MPConfig:
    """Fixed shares of the rows for each length: the largest rows get the first."""

    stoc_len_levels: list[int]
    level_fractions: list[float] | None = None
    qk_metric: str = "q_row_max"
    av_metric: str = "attn_row_max"
    mlp_metric: str = "x_row_max"

    def __post_init__(self) -> None:
        count = len(self.stoc_len_levels)
        if self.level_fractions is None:
            self.level_fractions = [1.0 / count] * count
        if len(self.level_fractions) != count:
            raise ValueError(f"level_fractions has {len(self.level_fractions)} entries, stoc_len_levels {count}")
        if abs(sum(self.level_fractions) - 1.0) >= 1e-6:
            raise ValueError(f"level_fractions must sum to 1.0, got {sum(self.level_fractions)}")


def adaptive_classify_rows(
    metric: Tensor,
    config: AdaptiveMPConfig,
    operator: str | None = None,
    block_idx: int | None = None,
    total_blocks: int | None = None,
    timestep: int = 0,
    total_timesteps: int = 1,
) -> RowAssignment:
    """Rows to lengths by what the configuration has: boundaries, fractions or thresholds, looked for in this order."""
    place: dict[str, Any] = {"operator": operator, "block_idx": block_idx, "total_blocks": total_blocks}
    place |= {"timestep": timestep, "total_timesteps": total_timesteps}
    levels = config.get_levels(**place)
    if metric.shape[0] == 0:
        none = torch.empty(0, dtype=torch.long, device=metric.device)
        return RowAssignment(none, {length: none for length in levels})
    if isinstance(config, FreeBoundaryMPConfig):
        fixed = config.get_fixed_level(operator or "")
        if fixed is not None:
            return _classify_all_rows_to_level(metric, levels, fixed)
        return _classify_with_free_boundaries(metric, config.get_boundaries(operator or ""), levels)
    if config.target_fractions is not None:
        return _classify_by_fractions(metric, levels, config.target_fractions)
    norm = _normalised(metric)
    if norm is None:
        return _classify_all_rows_to_level(metric, levels, 0)
    thresholds = config.get_thresholds(**place)
    if thresholds is None:
        raise ValueError(f"no thresholds for {operator} of block {block_idx}, and no target_fractions")
    assignment = _classify_rows_by_thresholds(norm, levels, thresholds)
    _apply_escape_gate(assignment, norm, config, **place)
    return assignment


def _apply_escape_gate(
    assignment: RowAssignment,
    metric_norm: Tensor,
    config: AdaptiveMPConfig,
    *,
    operator: str | None,
    block_idx: int | None,
    total_blocks: int | None,
    timestep: int,
    total_timesteps: int,
) -> None:
    """Rows above the gate get escape_stoc_len, whatever their level was."""
    place: dict[str, Any] = {"operator": operator, "block_idx": block_idx, "total_blocks": total_blocks}
    place |= {"timestep": timestep, "total_timesteps": total_timesteps}
    gate = config.get_escape_threshold(**place)
    if gate is None:
        return
    escaped = metric_norm > metric_norm.new_tensor(gate)
    if not bool(escaped.any()):
        return
    lengths = config.classify_level_values(**place)
    assignment.row_levels[escaped] = lengths.index(config.escape_stoc_len)
    for index, length in enumerate(lengths):
        assignment.level_row_indices[length] = torch.where(assignment.row_levels == index)[0]


@dataclass
class FreeBoundaryMPConfig(AdaptiveMPConfig):
    """Boundaries of the metric for each (block, operator), descending; or one level for all of its rows."""

    boundaries: dict[tuple[int, str], Any] = field(default_factory=dict)
    fixed_levels: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in (*self.boundaries, *self.fixed_levels):
            if not isinstance(key, tuple) or len(key) != 2:
                raise AssertionError(f"key {key!r}: expected (block, operator)")
        for values in self.boundaries.values():
            self._checked(values)
        for level in self.fixed_levels.values():
            self._checked_level(level)

    def _checked(self, boundaries: Any) -> Tensor:
        values = boundaries.detach().cpu().float() if isinstance(boundaries, torch.Tensor) else torch.as_tensor(boundaries).float()
        if values.numel() != len(self.stoc_len_levels) - 1:
            raise AssertionError(f"{values.numel()} boundaries: expected {len(self.stoc_len_levels) - 1}")
        return values

    def _checked_level(self, level_idx: int) -> int:
        if not 0 <= int(level_idx) < len(self.stoc_len_levels):
            raise AssertionError(f"level {level_idx}: allowed is 0..{len(self.stoc_len_levels) - 1}")
        return int(level_idx)

    @staticmethod
    def _key(operator: str, block_idx: int | None) -> tuple[int, str]:
        return (get_current_block_idx() if block_idx is None else int(block_idx), operator)

    def default_boundaries(self) -> Tensor:
        """Equal steps."""
        count = len(self.stoc_len_levels)
        return torch.tensor([1 - (i + 1) / count for i in range(count - 1)], dtype=torch.float32)

    def get_boundaries(self, operator: str, block_idx: int | None = None) -> Tensor:
        """Of the block, or the current one; equal steps where none were set."""
        found = self.boundaries.get(self._key(operator, block_idx))
        if found is None:
            return self.default_boundaries()
        return found if isinstance(found, torch.Tensor) else torch.as_tensor(found)

    def set_boundaries(self, operator: str, block_idx: int, boundaries: Any) -> None:
        """Sets them; a fixed level goes."""
        key = self._key(operator, block_idx)
        self.boundaries[key] = self._checked(boundaries)
        self.fixed_levels.pop(key, None)

    def get_fixed_level(self, operator: str, block_idx: int | None = None) -> int | None:
        """The one level of all rows, if there is one."""
        return self.fixed_levels.get(self._key(operator, block_idx))

    def set_fixed_level(self, operator: str, block_idx: int, level_idx: int) -> None:
        """Sets it; boundaries go."""
        key = self._key(operator, block_idx)
        self.fixed_levels[key] = self._checked_level(level_idx)
        self.boundaries.pop(key, None)

    def clear_fixed_level(self, operator: str, block_idx: int) -> None:
        """Rows are divided again."""
        self.fixed_levels.pop(self._key(operator, block_idx), None)


@dataclass
class RangeMPConfig:
    """Lengths of groups of weight rows by their range: as large as base_threshold of the largest gets the first."""

    stoc_len_levels: list[int]
    base_threshold: float = 0.3
    operator_thresholds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_descending(self.stoc_len_levels)

    def get_threshold(self, operator: str | None = None) -> float:
        """Of an operator."""
        return self.operator_thresholds.get(operator or "", self.base_threshold)


def classify_groups_by_range(
    weight: Tensor, group_size: int, config: RangeMPConfig, operator: str | None = None
) -> list[int]:
    """The length of each group of group_size rows of a weight (0, or more than it has: one group)."""
    rows = weight.shape[0]
    size = rows if group_size <= 0 or group_size >= rows else group_size
    if rows % size:
        raise ValueError(f"group_size = {size}: expected a divisor of {rows} rows")
    groups = weight.reshape(rows // size, -1).to(torch.float32)
    spread = groups.amax(dim=1) - groups.amin(dim=1)
    norm = (spread - spread.min()) / (spread.max() - spread.min() + 1e-8)
    levels, steps = config.stoc_len_levels, len(config.stoc_len_levels) - 1
    threshold = min(config.get_threshold(operator), 0.95)
    limits = torch.tensor([threshold * (steps - k) / steps for k in range(steps)], device=weight.device)
    return [levels[int(index)] for index in (norm[:, None] < limits[None]).sum(dim=1)]
