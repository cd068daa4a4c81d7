# SPDX-License-Identifier: Apache-2.0
"""Products in stochastic computing."""

from .conv import conv2d_lowered_rows, sc_conv2d
from .kernels import clear_rng_cache, det_kernel_tuning
from .matmul import sc_matmul

__all__ = ["clear_rng_cache", "conv2d_lowered_rows", "det_kernel_tuning", "sc_conv2d", "sc_matmul"]
