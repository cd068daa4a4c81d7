// SPDX-License-Identifier: Apache-2.0
// Turns float activations into what a linear multiplies: applies the prologue f (RMSNorm, or SiLU times up), then
// quantizes to SC codes or stores plain floats.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {

// The activations x of a LinearCall and its prologue f; kernels compute f(x) row by row. Device memory; strides are in
// floats.
struct RowSource {
  Prologue prologue = Prologue::kNone;
  const float* x = nullptr;  // [rows][x_stride]
  // Floats from one row of x to the next.
  int64_t x_stride = 0;
  const float* x2 = nullptr;  // kSiluMul: the factor of SiLU(x), [rows][x2_stride]; else null
  // Floats from one row of x2 to the next.
  int64_t x2_stride = 0;
  const float* norm_weight = nullptr;  // kRmsNorm: weights of the norm, [cols]; else null
  float norm_eps = 0;

  // The second operand of f in memory: x2 for kSiluMul, norm_weight for kRmsNorm, null for kNone.
  const float* second() const {
    switch (prologue) {
      case Prologue::kNone: break;
      case Prologue::kRmsNorm: return norm_weight;
      case Prologue::kSiluMul: return x2;
    }
    return nullptr;
  }
};
RowSource MakeRowSource(const LinearCall& call);

// Whether the operands of f(x), and each of their rows, begin at multiples of 16 bytes.
inline bool IsAligned(const RowSource& source) {
  const auto is_even = [](const float* at, int64_t stride) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride % 4 == 0;
  };
  return is_even(source.x, source.x_stride) && is_even(source.x2, source.x2_stride) && is_even(source.norm_weight, 0);
}

// f of one element x of a row. y: the element's norm weight (kRmsNorm) or its x2 (kSiluMul); r: the row's
// 1 / sqrt(mean(x^2) + eps) (kRmsNorm).
STOCH_HD float ApplyPrologue(Prologue prologue, float x, float y, float r) {
  if (prologue == Prologue::kRmsNorm) return (x * r) * y;
  if (prologue == Prologue::kSiluMul) return Silu(x) * y;
  return x;
}

// Calls f with `prologue` as a std::integral_constant, for choosing a kernel.
template <typename F>
auto DispatchPrologue(Prologue prologue, const F& f) {
  switch (prologue) {
    case Prologue::kNone: break;
    case Prologue::kRmsNorm: return f(std::integral_constant<Prologue, Prologue::kRmsNorm>());
    case Prologue::kSiluMul: return f(std::integral_constant<Prologue, Prologue::kSiluMul>());
  }
  return f(std::integral_constant<Prologue, Prologue::kNone>());
}

// Element i of f(x) for one row. x, x2: the row's operands; r: RMSNorm's factor of the row.
template <Prologue P>
STOCH_HD float PrologueValue(const RowSource& source, const float* x, const float* x2, float r, int64_t i) {
  const float y = P == Prologue::kRmsNorm ? source.norm_weight[i] : P == Prologue::kSiluMul ? x2[i] : 0.0f;
  return ApplyPrologue(P, x[i], y, r);
}

// Quantizes f(x) as side a of `op`. The returned view points into `scratch`.
// Bits: docs/sc_arithmetic.md#2-quantizers; a chunk whose scope holds a NaN or an infinity becomes zeros and is
//       reported.
ScActivationView LaunchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                int64_t in_features, const ScOperator& op, const SiteReporter& reporter);

// out = f(x) as [rows][out_stride] of F32 (LaunchPrologue) or F16 (LaunchPrologueHalf); columns in_features ..
// out_stride - 1 become 0. Reports NaN and infinity.
void LaunchPrologue(DeviceContext& ctx, const RowSource& source, int64_t tokens, int64_t in_features, float* out,
                    int64_t out_stride, const SiteReporter& reporter);
void LaunchPrologueHalf(DeviceContext& ctx, const RowSource& source, int64_t tokens, int64_t in_features, uint16_t* out,
                        int64_t out_stride, const SiteReporter& reporter);

}  // namespace stoch::cuda
