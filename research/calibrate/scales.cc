// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/scales.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/base/parallel_for.h"
#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"
#include "research/rsum.h"

namespace stoch {
namespace {

constexpr float kLeast = 1e-5f;
constexpr float kLeastAwq = 1e-4f;

// Weights times t, rounded to `bits`, a scale for each output and 128 inputs.
HostMatrix Rounded(const HostMatrix& w, std::span<const float> t, int bits, int threads) {
  constexpr int64_t kGroup = 128;
  constexpr float kLeastMax = 1e-8f;
  const auto q_max = static_cast<float>((1 << (bits - 1)) - 1);
  HostMatrix result{w.rows, w.cols, {}};
  result.values.resize(w.values.size());
  ParallelFor(w.rows, threads, [&](int64_t row) {
    float* to = result.row(row);
    for (int64_t d = 0; d < w.cols; ++d) to[d] = w.row(row)[d] * t[static_cast<size_t>(d)];
    for (int64_t begin = 0; begin < w.cols; begin += kGroup) {
      const int64_t end = std::min(begin + kGroup, w.cols);
      float largest = 0.0f;
      for (int64_t d = begin; d < end; ++d) largest = std::max(largest, std::abs(to[d]));
      const float scale = std::max(largest, kLeastMax) / q_max;
      for (int64_t d = begin; d < end; ++d) to[d] = std::clamp(std::nearbyint(to[d] / scale), -q_max, q_max) * scale;
    }
  });
  return result;
}

HostMatrix HostProduct(const HostMatrix& x, const HostMatrix& w) {
  HostMatrix y{x.rows, w.rows, {}};
  for (int64_t n = 0; n < x.rows; ++n) {
    for (int64_t m = 0; m < w.rows; ++m) y.values.push_back(ExactDot(x.row(n), w.row(m), x.cols));
  }
  return y;
}

}  // namespace

float PowExact(float x, double e) {
  if (e == 0.0) return 1.0f;
  if (e == 1.0) return x;
  if (e == 0.5) return std::sqrt(x);
  return static_cast<float>(ExpDouble(e * Log(static_cast<double>(x))));
}

std::vector<float> SmoothQuantScales(const std::vector<float>& largest_x, const std::vector<float>& largest_w,
                                     double alpha) {
  std::vector<float> smooth;
  for (size_t j = 0; j < largest_x.size(); ++j) {
    const float a = PowExact(std::max(largest_x[j], kLeast), alpha);
    const float w = PowExact(std::max(largest_w[j], kLeast), 1.0 - alpha);
    smooth.push_back(std::max(a / w, kLeast));
  }
  return smooth;
}

std::vector<float> SmoothQuantQkScales(const std::vector<float>& largest_q, const std::vector<float>& largest_k,
                                       double alpha) {
  std::vector<float> scales = SmoothQuantScales(largest_q, largest_k, alpha);
  double sum = 0;
  for (const float s : scales) sum += static_cast<double>(s);
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  for (float& s : scales) s = std::max(s / mean, kLeast);
  return scales;
}

std::vector<float> LargestOfColumns(const HostMatrix& x) {
  std::vector<float> largest(static_cast<size_t>(x.cols), 0.0f);
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t d = 0; d < x.cols; ++d) {
      float& value = largest[static_cast<size_t>(d)];
      value = std::max(value, std::abs(x.row(row)[d]));
    }
  }
  return largest;
}

std::vector<float> AwqMeans(const HostMatrix& x) {
  std::vector<float> means;
  for (int64_t d = 0; d < x.cols; ++d) {
    double sum = 0;
    for (int64_t row = 0; row < x.rows; ++row) sum += std::abs(static_cast<double>(x.row(row)[d]));
    means.push_back(std::max(static_cast<float>(sum / static_cast<double>(x.rows)), kLeastAwq));
  }
  return means;
}

float ExactDot(const float* x, const float* w, int64_t n) {
  float lanes[kDotLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kDotLanes] = Fma(x[i], w[i], lanes[i % kDotLanes]);
  return FoldLanes<kDotLanes>(lanes);
}

AwqResult AwqScales(const std::vector<float>& mean, const HostMatrix& x, const HostMatrix& w, int bits,
                    const ExactProduct& product, int threads) {
  constexpr int kRatios = 20;
  const auto multiply = [&](const HostMatrix& a, const HostMatrix& b) {
    return product ? product(a, b) : HostProduct(a, b);
  };
  const HostMatrix exact = multiply(x, w);
  AwqResult result;
  for (int i = 0; i < kRatios; ++i) {
    std::vector<float> t;
    for (const float value : mean) t.push_back(PowExact(value, static_cast<double>(i) / kRatios));
    const auto [low, high] = std::minmax_element(t.begin(), t.end());
    const float middle = std::sqrt(*high * *low);
    for (float& value : t) value = std::max(value / middle, kLeastAwq);
    const HostMatrix y = multiply(Smoothed(x, t, false), Rounded(w, t, bits, threads));
    std::vector<double> sums(static_cast<size_t>(x.rows));
    ParallelFor(x.rows, threads, [&](int64_t n) {
      sums[static_cast<size_t>(n)] = RSum(w.rows, [&](int64_t m) {
        const double e = static_cast<double>(exact.row(n)[m]) - static_cast<double>(y.row(n)[m]);
        return e * e;
      });
    });
    double sum = 0;
    for (const double of_row : sums) sum += of_row;
    const double loss = sum / static_cast<double>(x.rows * w.rows);
    if (i == 0 || loss < result.losses[static_cast<size_t>(result.ratio_index)]) {
      result.ratio_index = i;
      result.smooth = t;
    }
    result.losses.push_back(loss);
  }
  return result;
}

}  // namespace stoch
