// SPDX-License-Identifier: Apache-2.0
// How far a product is from the exact one, quantization and streams apart.
#pragma once

#include <optional>
#include <vector>

#include "research/reference.h"

namespace stoch {

// y exact, z of quantized operands multiplied exactly, v as configured. Absent: 0 / 0. All in double.
struct ErrorMetrics {
  int64_t n = 0;
  double mse = 0;                           // mean (v - y)^2 = mse_quant + mse_stream + cross
  std::optional<double> mse_quant;          // mean (z - y)^2
  std::optional<double> mse_stream, cross;  // mean (v - z)^2, 2 mean (z - y)(v - z)
  double bias = 0;                          // mean (v - y)
  double max_abs = 0;
  std::optional<double> sqnr_db, rel_frobenius, cosine;
  std::optional<double> sigma_p50, sigma_p90, sigma_p99;  // of ||v - y|| / ||y|| of rows
};

// Sums over rows that come window by window. Bits: an rsum for each row, rows in the order of Add.
class ErrorSums {
 public:
  // Rows of n numbers; z null: no split.
  void Add(const float* y, const float* z, const float* v, int64_t rows, int64_t n);
  ErrorMetrics Metrics() const;
  double squared_error() const { return error_; }

 private:
  int64_t count_ = 0;
  bool has_split_ = true;
  double error_ = 0, quant_ = 0, stream_ = 0, cross_ = 0, bias_ = 0, max_abs_ = 0, yy_ = 0, vv_ = 0, vy_ = 0;
  std::vector<double> sigmas_;
};

}  // namespace stoch
