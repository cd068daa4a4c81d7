// SPDX-License-Identifier: Apache-2.0
// Smoothing factors of a linear from what its input channels carry: SmoothQuant and AWQ.
//
// Source: SmoothQuant (Xiao et al., ICML 2023), AWQ (Lin et al., MLSys 2024).
#pragma once

#include <functional>
#include <vector>

#include "research/reference.h"

namespace stoch {

// pow(x, e) of x > 0 by operations whose bits are the same everywhere; exact for e = 0, 0.5 and 1.
float PowExact(float x, double e);

// s_j = max(pow(a_j, alpha) / pow(w_j, 1 - alpha), 1e-5) of max |x_j| and max |w_j|, both at least 1e-5.
// Shapes: largest_x, largest_w, s [in_features].
std::vector<float> SmoothQuantScales(const std::vector<float>& largest_x, const std::vector<float>& largest_w,
                                     double alpha);
// Of one KV head's channels after RoPE: the same of max |q_j| of its query heads and max |k_j|, divided by their mean (a
// float of the sum in double, ascending), at least 1e-5.
std::vector<float> SmoothQuantQkScales(const std::vector<float>& largest_q, const std::vector<float>& largest_k,
                                       double alpha);
// The largest |x| of each column, at least 0.
std::vector<float> LargestOfColumns(const HostMatrix& x);

struct AwqResult {
  std::vector<float> smooth;
  int ratio_index = 0;         // of i / 20
  std::vector<double> losses;  // [20]
};
// mean [in_features]: mean |x_j| of all rows, at least 1e-4; x: the sampled rows, w [out_features, in_features].
// `product` is x @ w^T in kDotLanes order; the host's own loop where it is not given. Weights are rounded on up to
// `threads` threads.
using ExactProduct = std::function<HostMatrix(const HostMatrix& x, const HostMatrix& w)>;
AwqResult AwqScales(const std::vector<float>& mean, const HostMatrix& x, const HostMatrix& w, int bits,
                    const ExactProduct& product = {}, int threads = 1);
// max(float(double sum of |x_j| / rows), 1e-4), rows ascending.
std::vector<float> AwqMeans(const HostMatrix& x);

// A dot product in kDotLanes order.
float ExactDot(const float* x, const float* w, int64_t n);

}  // namespace stoch
