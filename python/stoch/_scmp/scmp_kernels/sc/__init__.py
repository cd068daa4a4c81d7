# SPDX-License-Identifier: Apache-2.0
"""Products in stochastic computing."""

from .kernels import clear_rng_cache, det_kernel_tuning
from .matmul import sc_matmul

__all__ = ["clear_rng_cache", "det_kernel_tuning", "sc_matmul"]
