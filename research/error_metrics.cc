// SPDX-License-Identifier: Apache-2.0
#include "research/error_metrics.h"

#include <algorithm>
#include <cmath>

#include "research/rsum.h"

namespace stoch {
namespace {

std::optional<double> Ratio(double a, double b) {
  if (b == 0.0) return std::nullopt;
  return a / b;
}

}  // namespace

void ErrorSums::Add(const float* y, const float* z, const float* v, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row, y += n, v += n) {
    const auto d = [](float a, float b) { return static_cast<double>(a) - static_cast<double>(b); };
    const double error = RSum(n, [&](int64_t i) { return d(v[i], y[i]) * d(v[i], y[i]); });
    const double yy = RSum(n, [&](int64_t i) { return static_cast<double>(y[i]) * static_cast<double>(y[i]); });
    error_ += error;
    yy_ += yy;
    vv_ += RSum(n, [&](int64_t i) { return static_cast<double>(v[i]) * static_cast<double>(v[i]); });
    vy_ += RSum(n, [&](int64_t i) { return static_cast<double>(v[i]) * static_cast<double>(y[i]); });
    bias_ += RSum(n, [&](int64_t i) { return d(v[i], y[i]); });
    for (int64_t i = 0; i < n; ++i) max_abs_ = std::max(max_abs_, std::abs(d(v[i], y[i])));
    if (const std::optional<double> sigma = Ratio(std::sqrt(error), std::sqrt(yy))) sigmas_.push_back(*sigma);
    count_ += n;
    if (z == nullptr) {
      has_split_ = false;
      continue;
    }
    quant_ += RSum(n, [&](int64_t i) { return d(z[i], y[i]) * d(z[i], y[i]); });
    stream_ += RSum(n, [&](int64_t i) { return d(v[i], z[i]) * d(v[i], z[i]); });
    cross_ += RSum(n, [&](int64_t i) { return d(z[i], y[i]) * d(v[i], z[i]); });
    z += n;
  }
}

ErrorMetrics ErrorSums::Metrics() const {
  ErrorMetrics m;
  m.n = count_;
  if (count_ == 0) return m;
  const auto n = static_cast<double>(count_);
  m.mse = error_ / n;
  if (has_split_) {
    m.mse_quant = quant_ / n;
    m.mse_stream = stream_ / n;
    m.cross = 2.0 * (cross_ / n);
  }
  m.bias = bias_ / n;
  m.max_abs = max_abs_;
  if (const auto ratio = Ratio(yy_, error_); ratio && *ratio > 0) m.sqnr_db = 10.0 * std::log10(*ratio);
  if (const auto ratio = Ratio(error_, yy_)) m.rel_frobenius = std::sqrt(*ratio);
  m.cosine = Ratio(vy_, std::sqrt(vv_) * std::sqrt(yy_));
  if (!sigmas_.empty()) {
    std::vector<double> sorted = sigmas_;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](size_t p) { return sorted[std::max<size_t>(1, (p * sorted.size() + 99) / 100) - 1]; };
    m.sigma_p50 = at(50);
    m.sigma_p90 = at(90);
    m.sigma_p99 = at(99);
  }
  return m;
}

}  // namespace stoch
