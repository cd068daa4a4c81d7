// SPDX-License-Identifier: Apache-2.0
// Rows of weight sources as floats: mapped files of any type, and random numbers made where they are needed.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

// Row `row` of a source as floats [cols]: the mapped memory itself where it is aligned F32, else in `scratch`.
const float* ReadRow(const Simd& simd, const WeightSource& source, int64_t row, float* scratch);

// Finds the part that holds a row of the stacked matrix.
class StackedRows {
 public:
  explicit StackedRows(std::span<const WeightSource> parts);
  int64_t rows() const { return ends_.back(); }
  size_t part(int64_t row) const;
  int64_t row_in_part(int64_t row) const { return row - (ends_[part(row)] - parts_[part(row)].rows); }
  const float* Read(const Simd& simd, int64_t row, float* scratch) const;

 private:
  std::span<const WeightSource> parts_;
  std::vector<int64_t> ends_;
};

}  // namespace stoch::cpu
