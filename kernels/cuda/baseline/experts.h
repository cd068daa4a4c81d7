// SPDX-License-Identifier: Apache-2.0
// Experts of the fp16 baseline: half weights and activations, fp32 sums. Outside the bit-identity promise.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

struct HalfExpertTask {
  const HalfWeightView* views = nullptr;  // device memory, by expert
  float* out = nullptr;                   // [slots]
  int64_t out_stride = 0;
};

// An ExpertLinearCall of matrices of one shape.
struct HalfExpertCall {
  HalfExpertTask tasks[kMaxScTasks];
  int count = 0;
  RowSource source;
  const int32_t* chosen = nullptr;
  int64_t slots = 0;
  int row_slots = 1;  // slots that share a row of x
  int64_t rows = 0;   // of a matrix
  int64_t cols = 0;
};

// out[s] = half(f(x of slot s)) @ w[chosen[s]]^T: every slot reads its expert's matrix, once.
void LaunchHalfExperts(DeviceContext& ctx, const HalfExpertCall& call, const SiteReporter& reporter);

}  // namespace stoch::cuda
