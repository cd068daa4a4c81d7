# SPDX-License-Identifier: Apache-2.0
"""The names of the published scmp_kernels, computed by the engine of stoch.

What differs from the original:
- CPU tensors are computed on the CPU and stay there.
- Counts are equal. Floats may differ in the last bit: the original multiplies by reciprocals where this divides.
- SC_OWEN_MODE=random draws its masks from the engine's counter-based generator, not from torch's of the device.
- A `config` whose channels differ is multiplied by tables in torch: slower, and without rung tables.
- Helpers that raise in the original work: taps of shift registers are computed, so no file is needed first. Taps and
  configurations are saved in the user's cache, not next to the package.
- Values outside of an explicit range are clamped to it.
- A length above 2**sc_prec is refused.
- mp.auto_calibrate_mp takes the regression and its module from qwt_sc.compensation, as the original, and does without
  that package where fit_compensation is False.

SCMP_KERNELS_SEMANTICS is read at every call: `published-2026` (the default: at most 64 masks, no counter masks, no
unscrambled rescaling) or `published` (commit fe3e75c: 256 masks, all of these allowed).

Here: sc (matmul, kernels, conv, sc_enable, rng, sng, lfsr_taps, constants, config_helpers), quant (fused, grouped,
smoothquant), mp (config, auto_calibrator), trace. Not here: kernels in Triton.
"""

from .sc import conv2d_lowered_rows, sc_conv2d, sc_matmul

__all__ = ["conv2d_lowered_rows", "sc_conv2d", "sc_matmul"]
