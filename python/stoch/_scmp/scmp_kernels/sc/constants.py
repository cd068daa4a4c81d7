# SPDX-License-Identifier: Apache-2.0
"""Largest values of the number formats that operands come from."""

FP8_E4M3_MAX = 448
FP8_E5M2_MAX = 57344
INT8_MAX = 127
