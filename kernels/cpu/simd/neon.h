// SPDX-License-Identifier: Apache-2.0
// The NEON variant's functions (contracts in simd.h). Every AArch64 processor has NEON: no build flag, no test at run
// time, no rule about out-of-line copies.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu::neon {

void ScBlock(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
             const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc);
extern const PanelLoops kPanel;  // panel_neon.cc
void SumByGates(const GateCall& call);
void ScDequantize(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y);
uint32_t MaxAbsBits(const float* x, int64_t n);
void Quantize(const float* x, int64_t n, float scale, int q_max, uint8_t* codes);

void DotRows(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
             float* out, int64_t out_stride, bool add);
void WeightedSum(const float* p, int64_t n, const float* const* v, int64_t dims, float* out);
extern const FixedLoops kFixed;  // fixed/neon.cc

}  // namespace stoch::cpu::neon
