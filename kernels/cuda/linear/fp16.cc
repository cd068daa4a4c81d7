// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/linear/fp16.h"

#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

void LaunchGemm(DeviceContext& ctx, const uint16_t* x, int64_t rows, const HalfWeightView& w, const LinearOutput& out) {
  // cuBLAS is column-major: out^T [w.rows, rows] = w [w.rows, cols] x^T [cols, rows].
  const float one = 1.0f;
  const float beta = out.add ? 1.0f : 0.0f;
  STOCH_CUBLAS(cublasGemmEx(ctx.cublas(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(w.rows), static_cast<int>(rows),
                            static_cast<int>(w.cols), &one, w.data, CUDA_R_16F, static_cast<int>(w.cols), x, CUDA_R_16F,
                            static_cast<int>(w.cols), &beta, out.data, CUDA_R_32F, static_cast<int>(out.stride),
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace

void LaunchFp16Linear(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, const Fp16Task* tasks, int count) {
  if (plan.route == LinearRoute::kHalfVector) {
    for (int first = 0; first < count; first += kMaxFp16Tasks) {
      LaunchFp16Vector(ctx, plan, source, rows, cols, reporter, tasks + first, std::min(kMaxFp16Tasks, count - first));
    }
    return;
  }
  Scratch scratch(ctx.workspace);
  uint16_t* x = scratch.Take<uint16_t>(rows * cols);
  LaunchPrologueHalf(ctx, source, rows, cols, x, cols, reporter);
  for (int i = 0; i < count; ++i) LaunchGemm(ctx, x, rows, tasks[i].weight, tasks[i].out);
}

}  // namespace stoch::cuda
