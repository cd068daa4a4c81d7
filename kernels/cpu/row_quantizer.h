// SPDX-License-Identifier: Apache-2.0
// Rows of attention that are quantized one by one.
#pragma once

#include "kernels/cpu/context.h"
#include "kernels/cpu/sc_lookup.h"
#include "kernels/cpu/sc_quantize.h"
#include "kernels/math/number_formats.h"

namespace stoch::cpu {

inline ScChunks ChunksOf(int64_t dims, int64_t size) {
  ScChunks chunks;
  chunks.cols = dims;
  chunks.size = size;
  chunks.count = (dims + size - 1) / size;
  return chunks;
}
inline ScChunks OneChunk(int64_t dims) { return ChunksOf(dims, dims); }
// Scopes of a row of q or k.
inline ScChunks HeadChunks(const ScOperator& qk, int64_t head_dim) {
  return ChunksOf(head_dim, qk.config.arith == ScArith::kMxInt8 ? kMxBlock : head_dim);
}

// Quantizes rows one by one, each its own scope.
class RowQuantizer {
 public:
  RowQuantizer(Context& context, const ScLookup& lookup, const ScChunks& chunks)
      : quantizer_(context.pool, context.simd, *lookup.op, chunks, ScScopes{1, 1}, 1, nullptr) {}
  bool operator()(const float* x, uint8_t* codes, float* scale) const {
    return quantizer_.Quantize(0, x, {codes, scale, nullptr, nullptr});
  }
  bool operator()(const float* x, const ScQuantizer::Row& out) const { return quantizer_.Quantize(0, x, out); }

 private:
  ScQuantizer quantizer_;
};

}  // namespace stoch::cpu
