// SPDX-License-Identifier: Apache-2.0
// The fp16 baseline: half weights and activations, fp32 sums. Outside the bit-identity promise.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/float.h"

namespace stoch::cuda {

inline constexpr int kMaxFp16Tasks = kMaxScTasks;

struct Fp16Task {
  HalfWeightView weight;
  LinearOutput out;
};

// y = half(f(x)) @ w^T for weights that share f(x): few rows by our own kernel, which reads memory at the SC kernels'
// speed (cuBLAS's own leaves a third of it unused at one row), more by cuBLAS. Requires: PlanHalfLinear's plan.
void LaunchFp16Linear(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, const Fp16Task* tasks, int count);

// The kernel for few rows (fp16_vector.cu).
// Requires: a plan of kHalfVector; count <= kMaxFp16Tasks.
void LaunchFp16Vector(DeviceContext& ctx, const LinearPlan& plan, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, const Fp16Task* tasks, int count);

}  // namespace stoch::cuda
