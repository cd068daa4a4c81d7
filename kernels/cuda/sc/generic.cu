// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/sc/linear.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 128;

// One thread per output. Lanes of a warp are the rows of a weight tile, so that weights are read in whole lines; the
// table is read through the caches.
template <ScCode kCode>
__global__ void __launch_bounds__(kThreads)
    ScGenericKernel(const __grid_constant__ ScTables tables, const __grid_constant__ ScActivationView a,
                    const __grid_constant__ ScLinearTask task) {
  const ScWeightView& w = task.weight;
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t n = blockIdx.y;
  if (m >= w.rows) return;
  float y = 0.0f;
  for (int64_t c = 0; c < w.dims.chunks; ++c) {
    const int64_t first = c * w.dims.chunk_stride;
    const int64_t dims = w.dims.chunk_dims(c);
    int32_t acc = 0;
    for (int64_t i = 0; i < dims; i += kTileDims) {
      uint4 words = *reinterpret_cast<const uint4*>(w.codes + w.code_offset(m, first + i));
      const uint8_t* codes_b = reinterpret_cast<const uint8_t*>(&words);
      const uint8_t* codes_a = a.codes + n * a.dims.padded + first + i;
#pragma unroll
      for (int k = 0; k < kTileDims; ++k) {
        if (i + k >= dims) break;
        const int code_a = codes_a[k];
        const int code_b = codes_b[k];
        const int64_t mask = (i + k) & (tables.masks - 1);
        if constexpr (kCode == ScCode::kSignMagnitude) {
          const int count = tables.counts16[(mask * tables.levels + (code_a & 0x7f)) * tables.levels + (code_b & 0x7f)];
          acc += ((code_a ^ code_b) & 0x80) != 0 ? -count : count;
        } else {
          acc += tables.counts16[(mask * tables.levels + code_a) * tables.levels + code_b];
        }
      }
    }
    const float scale_a = a.scales[c * a.tokens + n];
    const float scale_b = w.scales[c * w.rows_padded + m];
    if constexpr (kCode == ScCode::kAsymmetric) {
      y = UnipolarProduct(acc, tables.gain, static_cast<int>(w.dims.dims), {scale_a, a.zeros[n], a.sums[n]},
                          {scale_b, w.zeros[m], w.sums[m]});
    } else {
      y = y + BipolarProduct(acc, tables.gain, scale_a, scale_b);
    }
  }
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
