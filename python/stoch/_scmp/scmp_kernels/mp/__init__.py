# SPDX-License-Identifier: Apache-2.0
"""Streams of different lengths."""

from .auto_calibrator import RidgeFitter, auto_calibrate_mp, oracle_search_block, oracle_search_op
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
    "RidgeFitter",
    "RowAssignment",
    "adaptive_classify_rows",
    "auto_calibrate_mp",
    "classify_groups_by_range",
    "classify_rows_by_metric",
    "compute_row_metric",
    "get_current_block_idx",
    "oracle_search_block",
    "oracle_search_op",
    "set_current_block_idx",
]
