// SPDX-License-Identifier: Apache-2.0
// Products of numbers in formats of their own (kernels/math/number_formats.h), 64 outputs at a time.
#pragma once

#include <cstdint>

namespace stoch::cpu {

// Right codes [dims][64] in E4M3 as numbers, in room that is kept for the thread's next call.
const double* DecodeE4m3(const uint8_t* block, int64_t dims);

// y[64] += the product of a left row and right numbers [dims][64], each one scope; right scales [64].
// Requires: dims as CheckAccumulator. Bits: of the exact sum, whatever the order.
void AddE4m3Block(const uint8_t* left, int64_t dims, const double* right, float scale, const float* right_scales,
                  float* y);

// y[64] += what sums [64] of codes of one block of MXINT8 are worth; right scales [64].
void AddMxBlock(const int32_t* acc, float scale, const float* right_scales, float* y);

}  // namespace stoch::cpu
