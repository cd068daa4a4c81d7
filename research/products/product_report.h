// SPDX-License-Identifier: Apache-2.0
// How far the counts of an operator are from the products that they stand for, and why.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sc/sc_operator.h"
#include "research/products/correlation.h"

namespace stoch {

// Errors of counts, over all masks and all pairs of levels that a quantizer makes. Units: counts of stoc_len.
struct ProductErrors {
  double mae = 0, bias = 0, max = 0, rmse = 0;
  int worst_mask = 0;  // of the largest mae, the first of equal ones
  double worst_mask_mae = 0;
  int64_t pairs = 0;  // of levels, in each mask
};
// e = count - stoc_len * a * b / Q^2; every mean is one division of exact integers.
// Requires: an operator with streams, or of a table of counts.
ProductErrors MeasureProduct(const ScOperator& op);

// Correlation of the free-running streams of one dimension, and of neighbouring ones.
struct ProductCorrelation {
  StreamCorrelation sides;           // side a with side b
  StreamCorrelation dims_a, dims_b;  // a side under two masks, at equal levels
};

// After so many cycles of the same streams: mean |count_t / t - a * b / Q^2|.
struct ProductProgress {
  std::vector<double> mae_of_cycles;  // [stoc_len], of t = 1..stoc_len
  // The least t from which on it stays at most 0.05, 0.02 and 0.01.
  static constexpr std::array<double, 3> kBounds = {0.05, 0.02, 0.01};
  std::array<std::optional<int>, 3> cycles_within;
};

struct ProductReport {
  ProductErrors errors;
  std::optional<ProductCorrelation> correlation;  // none of operators without streams
  std::optional<ProductProgress> progress;
};
// Time: 2^26 to 2^28 steps a thread for all masks of 128 cycles. Requires: as MeasureProduct.
ProductReport ReportProduct(const ScOperator& op);

}  // namespace stoch
