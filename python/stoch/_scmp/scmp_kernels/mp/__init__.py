# SPDX-License-Identifier: Apache-2.0
"""Streams of different lengths."""

from .config import (
    AdaptiveMPConfig,
    AutoMPBudgetLogger,
    FreeBoundaryMPConfig,
    MetricProfiler,
    MPConfig,
    MPDistributionLogger,
    RangeMPConfig,
    RowAssignment,
    adaptive_classify_rows,
    classify_groups_by_range,
    classify_rows_by_metric,
    compute_row_metric,
    get_current_block_idx,
    set_current_block_idx,
)

__all__ = [
    "AdaptiveMPConfig",
    "AutoMPBudgetLogger",
    "FreeBoundaryMPConfig",
    "MPConfig",
    "MPDistributionLogger",
    "MetricProfiler",
    "RangeMPConfig",
    "RowAssignment",
    "adaptive_classify_rows",
    "classify_groups_by_range",
    "classify_rows_by_metric",
    "compute_row_metric",
    "get_current_block_idx",
    "set_current_block_idx",
]
