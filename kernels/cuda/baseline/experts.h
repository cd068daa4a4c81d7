// SPDX-License-Identifier: Apache-2.0
// Experts (mixture of experts) of the fp16 baseline: weights and activations in fp16, sums in fp32. Its bits may differ
// between GPUs and libraries.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// One matrix of every expert, and where its products go.
struct HalfExpertTask {
  const HalfWeightView* views = nullptr;  // [experts], in device memory
  float* out = nullptr;                   // [slots][out_features], slots out_stride floats apart
  int64_t out_stride = 0;
};

// An ExpertLinearCall whose matrices have one shape. A slot is a row of activations with one expert chosen for it.
struct HalfExpertCall {
  HalfExpertTask tasks[kMaxScTasks];
  int count = 0;
  RowSource source;
  const int32_t* chosen = nullptr;
  int64_t slots = 0;
  int row_slots = 1;  // slots that share a row of activations
  int64_t rows = 0;   // rows of a matrix (out_features)
  int64_t cols = 0;
};

// Computes out[s] = half(f(x of slot s)) @ w[chosen[s]]^T for every slot s, where f is the prologue of call.source.
// Every slot reads its expert's matrices once.
void LaunchHalfExperts(DeviceContext& ctx, const HalfExpertCall& call, const SiteReporter& reporter);

}  // namespace stoch::cuda
