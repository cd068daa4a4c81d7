// SPDX-License-Identifier: Apache-2.0
// A whole block of experts for one row in one kernel: norm, router, choice, gate and up, SiLU, down, and their sum.
//
// Blocks are all on the GPU at once and hand over three times through the L2: each makes a few of the router's logits,
// which every block then chooses from for itself; products of gate and up, once all blocks have written theirs; products
// of down likewise. What does not depend on the others goes on meanwhile: the row is quantized and its count rows
// staged next to the router's products, and the codes of down are on their way before those of gate and up are summed.
#pragma once

#include "kernels/cuda/device/route_row.cuh"
#include "kernels/cuda/sc/experts/lookup.h"

namespace stoch::cuda {

// As of LaunchScExpertLookup: matrices of one shape and operator.
struct ScExpertPart {
  ExpertShape shape;
  const ScTables* tables = nullptr;
  RowSource source;
  FiniteReporter reporter;
  const ScExpertTask* tasks = nullptr;  // shape.matrices of them
};

// The router's exact weight, in the order of exact linears (ExactWeightView).
struct ExpertRouter {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t padded_cols = 0;
  FiniteReporter reporter;
};

// out = out + the experts' sum, as RouteCall, both ExpertLinearCalls and CombineExpertsCall define it; route.chosen and
// route.weights are written, route.logits and outputs of tasks are not.
// Requires: PlanExpertBlock of the two shapes supports it; `up` RMSNorms the row that the router's weight
//           `router` multiplies after the same norm; down.source is unused (SiLU of gate times up); FitsWarp(route).
void LaunchScExpertBlock(DeviceContext& ctx, const ExpertBlockPlan& plan, const RouteArgs& route,
                         const ExpertRouter& router, const ScExpertPart& up, const ScExpertPart& down,
                         const ExpertCombine& combine);

}  // namespace stoch::cuda
