// SPDX-License-Identifier: Apache-2.0
// SC products with mixed lengths, protected channels, integers and tables, as plainly as they can be said: the
// definition that backends are compared with, integer sums included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/math/nonlinear_table.h"
#include "kernels/sc/hardware/accumulator.h"
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

// A product with the sums that it was made of.
struct ReferenceProduct {
  std::vector<int32_t> acc;       // [n][chunks][m], before the gain; 0 where pruned
  std::vector<int64_t> wide_acc;  // of linears and qk with arith=fp8_e4m3, where acc is 0; units of 2^-18
  int64_t chunks = 0;
  HostMatrix y;                           // [n, m]
  std::vector<int32_t> codes_a, codes_b;  // levels as they are read, [n, d] and [m, d]; of E4M3 in units of 2^-9
  std::vector<float> scale_a, scale_b;    // [n, chunks] and [m, chunks]
};

// y = a @ b^T, row n in chunk c at lengths[n * per_row + c] (per_row 1: at lengths[n]); empty: at the operator's own.
// Faults are those of `site`; of b's codes, those of `cached` where given, whose first_row is that of b's first.
// Requires: per_row scopes. Source: docs/sc_arithmetic.md, docs/research.md.
ReferenceProduct MultiplyReference(const HostMatrix& a, const HostMatrix& b, const ScConfig& config,
                                   std::span<const int> lengths, const ScSite& site = {},
                                   const ScSite* cached = nullptr);

// The same operands, quantized, multiplied exactly: gain 1 on whole products, chunks in the same order.
HostMatrix MultiplyQuantized(const HostMatrix& a, const HostMatrix& b, const ScConfig& config);

// exp(s - max), or a table in its place, / sum of n scores, in kRowLanes order.
void SoftmaxReference(float* s, int64_t n, const NonlinearTable* table = nullptr);

// The channels of a matrix, in order.
HostMatrix SelectChannels(const HostMatrix& x, std::span<const int32_t> channels);
// x / s, or w * s.
HostMatrix Smoothed(const HostMatrix& x, std::span<const float> smooth, bool is_weight);

// p v with v quantized once a token, row n seeing start_position + n + 1 positions: SC at lengths[n], or, where the
// configuration is one of integers, by chunks of 128 positions.
// Faults are those of `site`, and of codes of v those of `cached`; first_row of either is that of position 0.
// Shapes: p [n, positions], v [positions, head_dim]; codes_b as v, scale_b empty: p has the scales of v.
ReferenceProduct PerTokenReference(const HostMatrix& p, const HostMatrix& v, const ScConfig& config,
                                   std::span<const int> lengths, int64_t start_position, const ScSite& site = {},
                                   const ScSite& cached = {});
// The same operands, quantized, multiplied exactly.
HostMatrix PerTokenQuantized(const HostMatrix& p, const HostMatrix& v, const ScConfig& config, int64_t start_position);

}  // namespace stoch
