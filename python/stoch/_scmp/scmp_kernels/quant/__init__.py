# SPDX-License-Identifier: Apache-2.0
"""What happens to operands before they are multiplied."""

from .fused import _quant_dummy, fused_quantize_bipolar, fused_quantize_bipolar_perrow, fused_quantize_unipolar
from .grouped import _grouped_asymmetric_quant, _grouped_symmetric_quant, _grouped_symmetric_quant_batched
from .smoothquant import accumulate_act_scales, apply_smoothing, apply_smoothing_offline, compute_smooth_scales

__all__ = [
    "_grouped_asymmetric_quant",
    "_grouped_symmetric_quant",
    "_grouped_symmetric_quant_batched",
    "_quant_dummy",
    "accumulate_act_scales",
    "apply_smoothing",
    "apply_smoothing_offline",
    "compute_smooth_scales",
    "fused_quantize_bipolar",
    "fused_quantize_bipolar_perrow",
    "fused_quantize_unipolar",
]
