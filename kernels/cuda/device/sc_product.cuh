// SPDX-License-Identifier: Apache-2.0
// One SC product by the count table, for any configuration.
#pragma once

#include <cstdint>

#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

// Row n of a times row m of w, chunk after chunk. Threads of a warp best take the rows of a weight tile, so that weights
// are read in whole lines; the table is read through the caches.
// Bits: docs/sc_arithmetic.md#5-back-to-real-numbers.
template <ScCode kCode>
__device__ __forceinline__ float ScRowProduct(const ScTables& tables, const ScActivationView& a, const ScWeightView& w,
                                              int64_t n, int64_t m) {
  float y = 0.0f;
  for (int64_t c = 0; c < w.dims.chunks; ++c) {
    const int64_t first = c * w.dims.chunk_stride;
    const int64_t dims = w.dims.chunk_dims(c);
    int32_t acc = 0;
    for (int64_t i = 0; i < dims; i += kTileDims) {
      uint4 words = *reinterpret_cast<const uint4*>(w.codes + w.code_offset(m, first + i));
      const uint8_t* codes_b = reinterpret_cast<const uint8_t*>(&words);
      const uint8_t* codes_a = a.codes + n * a.dims.padded + first + i;
#pragma unroll
      for (int k = 0; k < kTileDims; ++k) {
        if (i + k >= dims) break;
        const int code_a = codes_a[k];
        const int code_b = codes_b[k];
        const int64_t mask = (i + k) & (tables.masks - 1);
        if constexpr (kCode == ScCode::kSignMagnitude) {
          const int count = tables.counts16[(mask * tables.levels + (code_a & 0x7f)) * tables.levels + (code_b & 0x7f)];
          acc += ((code_a ^ code_b) & 0x80) != 0 ? -count : count;
        } else {
          acc += tables.counts16[(mask * tables.levels + code_a) * tables.levels + code_b];
        }
      }
    }
    const float scale_a = a.scales[c * a.tokens + n];
    const float scale_b = w.scales[c * w.rows_padded + m];
    if constexpr (kCode == ScCode::kAsymmetric) {
      y = UnipolarProduct(acc, tables.gain, static_cast<int>(w.dims.dims), {scale_a, a.zeros[n], a.sums[n]},
                          {scale_b, w.zeros[m], w.sums[m]});
    } else {
      y = y + BipolarProduct(acc, tables.gain, scale_a, scale_b);
    }
  }
  return y;
}

}  // namespace stoch::cuda
