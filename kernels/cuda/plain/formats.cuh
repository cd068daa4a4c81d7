// SPDX-License-Identifier: Apache-2.0
// Sums of products in 8-bit number formats (kernels/math/number_formats.h), exact in any order.
#pragma once

#include <cstdint>

#include "kernels/math/number_formats.h"
#include "kernels/sc/sc_config.h"

namespace stoch::cuda {

// The sum of products of codes, by one thread. Requires: arith is E4M3 or MXINT8.
class FormatSum {
 public:
  __device__ explicit FormatSum(ScArith arith) : is_e4m3_(arith == ScArith::kFp8E4m3) {}

  // Adds the product of two codes.
  __device__ void Add(uint8_t a, uint8_t b) {
    if (is_e4m3_) {
      sum_ += int64_t{E4m3Level(a)} * E4m3Level(b);
    } else {
      sum_ += (int{a} - kMxLevels) * (int{b} - kMxLevels);
    }
  }
  // The sum as a real number.
  __device__ float Value(float scale_a, float scale_b) const {
    return is_e4m3_ ? E4m3Product(sum_, scale_a, scale_b) : MxProduct(static_cast<int32_t>(sum_), scale_a, scale_b);
  }

 private:
  bool is_e4m3_;
  int64_t sum_ = 0;
};

}  // namespace stoch::cuda
