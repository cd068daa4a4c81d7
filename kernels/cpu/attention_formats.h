// SPDX-License-Identifier: Apache-2.0
// The two products of attention in formats of numbers (kernels/math/number_formats.h), for one query row at a time.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/sc_operands.h"

namespace stoch::cpu {

// A query row and what it is multiplied with: keys of one block, [head_dim][64] codes and [count][key_scales] scales.
struct FormatKeys {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  int64_t key_scales = 1;
  int64_t count = 0;  // valid keys of the block's 64
};
// out[count] = q k^T of row n. Requires: q in HeadChunks.
void MultiplyKeys(const Simd& simd, const ScLookup& qk, const ScRows& q, int64_t n, const FormatKeys& keys, float* out);

// out[head_dim] = p v in E4M3 of row n, which sees positions [0, visible), those before its window's page left out.
// Requires: p in chunks of absolute positions.
void MultiplyValues(const AttentionWork& work, const AttentionTile& tile, const ScRows& p, int64_t n, int64_t visible,
                    float* out);

}  // namespace stoch::cpu
