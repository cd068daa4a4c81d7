# SPDX-License-Identifier: Apache-2.0
"""The names of the published scmp_kernels, computed by the engine of stoch.

What differs from the original:
- CPU tensors are computed on the CPU and stay there.
- Counts are equal. Floats may differ in the last bit: the original multiplies by reciprocals where this divides.
- SC_OWEN_MODE=random draws its masks from the engine's counter-based generator, not from torch's of the device.
- `config`: one Sobol sequence for each side; bit permutations by channel are refused.
- A length above 2**sc_prec is refused.

SCMP_KERNELS_SEMANTICS is read at every call: `published-2026` (the default: at most 64 masks, no counter masks, no
unscrambled rescaling) or `published` (commit fe3e75c: 256 masks, all of these allowed).

Here: sc (matmul, kernels, constants), quant (smoothquant). Not here yet: mp, trace, conv, sc_enable, rng, sng, lfsr_taps,
config_helpers, quant.fused, quant.grouped.
"""

from .sc import sc_matmul

__all__ = ["sc_matmul"]
