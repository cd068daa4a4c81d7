// SPDX-License-Identifier: Apache-2.0
// Quantizes a chunk that a warp holds in registers, four adjacent dimensions per lane.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/math/signed_codes.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

inline constexpr int kHeldDims = 4 * kWarp;

// Whether a warp may hold a chunk of f(x) in registers: all groups of four elements are aligned vectors, and the code's
// scale depends on the largest magnitude alone.
inline bool HasVectors(const RowSource& source, const ScDims& dims, ScCode code) {
  static_assert(kHeldDims == kDecodeChunkDims);
  return HoldsVectors(dims, code) && IsAligned(source);
}

// Elements i .. i + 3 of f(x) for one row. Requires: IsAligned, i % 4 == 0.
template <Prologue P>
__device__ __forceinline__ float4 PrologueValues(const RowSource& source, const float* x, const float* x2, float r,
                                                 int64_t i) {
  const float4 of = *reinterpret_cast<const float4*>(x + i);
  const float* ys = P == Prologue::kRmsNorm ? source.norm_weight : x2;
  float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if constexpr (P != Prologue::kNone) y = *reinterpret_cast<const float4*>(ys + i);
  return make_float4(ApplyPrologue(P, of.x, y.x, r), ApplyPrologue(P, of.y, y.y, r), ApplyPrologue(P, of.z, y.z, r),
                     ApplyPrologue(P, of.w, y.w, r));
}

// The codes of a chunk of up to kHeldDims dimensions. Called by all lanes of a warp with four values v each; lanes
// without elements repeat another lane's, which does not change the largest magnitude.
struct HeldCodes {
  uint32_t word;  // this lane's four codes, one byte each
  float scale;    // scale of the chunk (ScopeQuantizer)
  // False if a value is NaN or infinite; the codes and the scale are then 0.
  bool finite;

  __device__ __forceinline__ HeldCodes(const ScopeParams& params, const float4& v) {
    Extremes e;
    for (const float value : {v.x, v.y, v.z, v.w})
      e.max_abs_bits = max(e.max_abs_bits, FloatToBits(value) & 0x7fffffffu);
    e.max_abs_bits = __reduce_max_sync(kAllLanes, e.max_abs_bits);
    const ScopeQuantizer quantizer(params, e);
    const SignedCodes fast(quantizer.scale, params.q_max);
    const auto word_of = [&](const auto& code) {
      return static_cast<uint32_t>(code(v.x)) | static_cast<uint32_t>(code(v.y)) << 8 |
             static_cast<uint32_t>(code(v.z)) << 16 | static_cast<uint32_t>(code(v.w)) << 24;
    };
    word = params.code == ScCode::kSignMagnitude && fast.IsExact()
               ? word_of([&](float value) { return fast.Of(value); })
               : word_of([&](float value) { return quantizer.Code(params, value); });
    scale = quantizer.scale;
    finite = quantizer.finite;
  }
};

}  // namespace stoch::cuda
