# SPDX-License-Identifier: Apache-2.0
"""What happens to operands before they are multiplied."""

from .smoothquant import accumulate_act_scales, apply_smoothing, apply_smoothing_offline, compute_smooth_scales

__all__ = ["accumulate_act_scales", "apply_smoothing", "apply_smoothing_offline", "compute_smooth_scales"]
