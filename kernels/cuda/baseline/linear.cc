// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/baseline/linear.h"

#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

void LaunchGemm(DeviceContext& ctx, const uint16_t* x, int64_t rows, const HalfWeightView& w, const LinearOutput& out) {
  // cuBLAS is column-major, so it computes out^T [w.rows, rows] = w [w.rows, cols] x^T [cols, rows].
  const float one = 1.0f;
  const float beta = out.add ? 1.0f : 0.0f;
  STOCH_CUBLAS(cublasGemmEx(ctx.cublas(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(w.rows), static_cast<int>(rows),
                            static_cast<int>(w.cols), &one, w.data, CUDA_R_16F, static_cast<int>(w.cols), x, CUDA_R_16F,
                            static_cast<int>(w.cols), &beta, out.data, CUDA_R_32F, static_cast<int>(out.stride),
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace

void LaunchHalfLinear(DeviceContext& ctx, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, std::span<const HalfTask> tasks) {
  Scratch scratch(ctx.workspace);
  auto* const x = scratch.Take<uint16_t>(rows * cols);
  LaunchPrologueHalf(ctx, source, rows, cols, x, cols, reporter);
  for (const HalfTask& task : tasks) LaunchGemm(ctx, x, rows, task.weight, task.out);
}

}  // namespace stoch::cuda
