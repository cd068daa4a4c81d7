// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rms_norm.h"

#include "kernels/math/host_device.h"

namespace stoch::cpu {

void RmsNorm(const Simd& simd, const float* x, const float* weight, float eps, int64_t n, float* out,
             const NonlinearTable* rsqrt) {
  const float mean = simd.sum_squares(x, n) / static_cast<float>(n);
  const float r = rsqrt == nullptr ? 1.0f / Sqrt(mean + eps) : rsqrt->RsqrtAt(mean + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] * r) * weight[i];
}

}  // namespace stoch::cpu
