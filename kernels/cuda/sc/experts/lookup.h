// SPDX-License-Identifier: Apache-2.0
// SC products of experts, every slot on its own: what a step of few tokens reads are the matrices of chosen experts.
//
// As the kernel of one token (decode/decode.h): a block stages the count rows of a chunk of one row of x and its warps
// stream tiles of 32 weight rows past them. Slots that share the row share what is staged; whose weights they want is
// read on the device, from what the router wrote.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/plan/linear/experts.h"

namespace stoch::cuda {

// One matrix of every expert, and where the products of all slots go.
struct ScExpertTask {
  const ScWeightView* views = nullptr;  // device memory, by expert
  ScWeightView first;                   // of expert 0: shapes are those of all
  float* out = nullptr;                 // [slots]
  int64_t out_stride = 0;
};

// Where the products of a row's slots are added up, by CombineExpertsCall: out[r] = out[r] + sum of weights[r, k] times
// slot r * top_k + k. top_k 0: nowhere.
struct ExpertCombine {
  const float* weights = nullptr;  // [rows, top_k]
  int top_k = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// out[s] = f(x of slot s) @ w[chosen[s]]^T for tasks of one shape.
// With `combine`, tasks[0].out is not written.
// Requires: a plan whose kernel is kLookup; 1 <= count <= kMaxScTasks; per-row scopes of activations; CanCombine.
void LaunchScExpertLookup(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTables& tables,
                          const RowSource& source, const int32_t* chosen, const SiteReporter& reporter,
                          const ScExpertTask* tasks, int count, const ExpertCombine& combine);

}  // namespace stoch::cuda
