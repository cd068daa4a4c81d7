// SPDX-License-Identifier: Apache-2.0
// SC products of a mixture of experts for few tokens; every slot is a matrix-vector product of its own. A slot is a
// (row of x, chosen expert) pair. Such a step is bound by reading the matrices of the chosen experts.
//
// The kernel works as that of one-token decode (decode/decode.h): a block stages the count-table rows of one chunk of a
// row of x in shared memory, and its warps stream tiles of 32 weight rows through registers. Slots that share a row of
// x share the staged rows. The kernel reads the router's choice of experts on the device, so the host never waits for
// it.
#pragma once

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/plan/linear/experts.h"

namespace stoch::cuda {

// One matrix of every expert, and the destination of the slots' products.
struct ScExpertTask {
  const ScWeightView* views = nullptr;  // weights of every expert, device memory [experts]
  ScWeightView first;                   // view of expert 0, on the host; all experts have its shape
  float* out = nullptr;                 // [slots][out_features] products, rows out_stride floats apart
  int64_t out_stride = 0;
};

// The weighted sum of each row's slots (CombineExpertsCall), computed in the same kernel: out[r] = out[r] + sum over k
// < top_k of weights[r][k] * (product of slot r * top_k + k).
struct ExpertCombine {
  const float* weights = nullptr;  // [rows][top_k] routing weights
  int top_k = 0;                   // slots of a row; 0: slots are not combined
  float* out = nullptr;            // [rows][out_features] sums, rows out_stride floats apart
  int64_t out_stride = 0;
};

// tasks[i].out[s] = f(x of slot s) @ w_i[chosen[s]]^T for every slot s and `count` tasks of one shape. If combine.top_k
// > 0, products go to combine.out only, and tasks[0].out is not written.
// Requires: a plan whose route is kExpertLookup; 1 <= count <= kMaxScTasks; activation scales that rows do not share;
//           CanCombine if combine.top_k > 0.
void LaunchScExpertLookup(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTables& tables,
                          const RowSource& source, const int32_t* chosen, const SiteReporter& reporter,
                          const ScExpertTask* tasks, int count, const ExpertCombine& combine);

}  // namespace stoch::cuda
