// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/sc_product.cuh"
#include "kernels/cuda/sc/linear.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 128;

// One thread per output.
template <ScCode kCode>
__global__ void __launch_bounds__(kThreads)
    ScGenericKernel(const __grid_constant__ ScTables tables, const __grid_constant__ ScActivationView a,
                    const __grid_constant__ ScLinearTask task) {
  const ScWeightView& w = task.weight;
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t n = blockIdx.y;
  if (m >= w.rows) return;
  const float y = ScRowProduct<kCode>(tables, a, w, n, m);
  float* out = task.out.data + n * task.out.stride + m;
  *out = task.out.add ? *out + y : y;
}

auto KernelOf(ScCode code) {
  switch (code) {
    case ScCode::kSignMagnitude: break;
    case ScCode::kOffset: return ScGenericKernel<ScCode::kOffset>;
    case ScCode::kAsymmetric: return ScGenericKernel<ScCode::kAsymmetric>;
  }
  return ScGenericKernel<ScCode::kSignMagnitude>;
}

}  // namespace

void LaunchScGeneric(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScLinearTask* tasks,
                     int count) {
  const auto kernel = KernelOf(tables.code);
  constexpr int64_t kMaxGridRows = 65535;
  for (int i = 0; i < count; ++i) {
    for (int64_t first = 0; first < a.tokens; first += kMaxGridRows) {
      ScActivationView part = a;
      ScLinearTask task = tasks[i];
      part.codes += first * a.dims.padded;
      part.scales += first;
      if (a.zeros != nullptr) part.zeros += first;
      if (a.sums != nullptr) part.sums += first;
      task.out.data += first * task.out.stride;
      const int64_t rows = a.tokens - first < kMaxGridRows ? a.tokens - first : kMaxGridRows;
      const dim3 grid(static_cast<unsigned>((task.weight.rows + kThreads - 1) / kThreads), static_cast<unsigned>(rows));
      kernel<<<grid, kThreads, 0, ctx.stream>>>(tables, part, task);
      STOCH_CUDA_LAUNCH("ScGenericKernel");
    }
  }
}

}  // namespace stoch::cuda
