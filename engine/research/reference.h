// SPDX-License-Identifier: Apache-2.0
// SC products with mixed lengths, protected channels, integers and tables, as plainly as they can be said: the
// definition that backends are compared with, integer sums included.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "kernels/sc/sc_lengths.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

// A dense row-major matrix on the host.
struct HostMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;
  const float* row(int64_t i) const { return values.data() + i * cols; }
  float* row(int64_t i) { return values.data() + i * cols; }
};

// The signed count of one product of levels, in dimension d of its chunk.
inline int SignedCount(const ScOperator& op, int64_t d, int a, int b) {
  const int mask = static_cast<int>(d % op.masks);
  switch (op.code) {
    case ScCode::kAsymmetric: return op.count(mask, a, b);
    case ScCode::kOffset: return op.count(mask, a + op.q_max, b + op.q_max);
    case ScCode::kSignMagnitude: break;
  }
  const int count = op.count(mask, std::abs(a), std::abs(b));
  return (a < 0) != (b < 0) ? -count : count;
}

// A product with the sums that it was made of.
struct ReferenceProduct {
  std::vector<int32_t> acc;  // [n][chunks][m], before the gain; 0 where pruned
  int64_t chunks = 0;
  HostMatrix y;  // [n, m]
};

// y = a @ b^T, row n in chunk c at lengths[n * per_row + c] (per_row 1: at lengths[n]); empty: at the operator's own.
// Requires: per_row scopes. Source: docs/sc_arithmetic.md, docs/research.md.
ReferenceProduct MultiplyReference(const HostMatrix& a, const HostMatrix& b, const ScConfig& config,
                                   std::span<const int> lengths);

// The same operands, quantized, multiplied exactly: gain 1 on whole products, chunks in the same order.
HostMatrix MultiplyQuantized(const HostMatrix& a, const HostMatrix& b, const ScConfig& config);

// The channels of a matrix, in order.
HostMatrix SelectChannels(const HostMatrix& x, std::span<const int32_t> channels);
// x / s, or w * s.
HostMatrix Smoothed(const HostMatrix& x, std::span<const float> smooth, bool is_weight);

// p v with v quantized once a token, row n seeing start_position + n + 1 positions: SC at lengths[n], or, where the
// configuration is one of integers, by chunks of 128 positions.
// Shapes: p [n, positions], v [positions, head_dim].
ReferenceProduct PerTokenReference(const HostMatrix& p, const HostMatrix& v, const ScConfig& config,
                                   std::span<const int> lengths, int64_t start_position);
// The same operands, quantized, multiplied exactly.
HostMatrix PerTokenQuantized(const HostMatrix& p, const HostMatrix& v, const ScConfig& config, int64_t start_position);

}  // namespace stoch
