// SPDX-License-Identifier: Apache-2.0
// SC products of experts on binary tensor cores: the slots that chose an expert are the tokens of tiles of a linear, and
// the device finds out which (sc/experts/groups.h). As prefill.h otherwise.
#pragma once

#include "kernels/cuda/sc/experts/groups.h"
#include "kernels/cuda/sc/experts/lookup.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/plan/linear/experts.h"

namespace stoch::cuda {

// out[s] = x of slot s @ w[expert of s]^T for tasks of one shape; `a` has the rows of x.
// Requires: a plan whose kernel is kGrouped; 1 <= count <= kMaxScTasks.
// Scratch:  streams of plan.tiles_at_once tiles, from ctx.workspace.
void LaunchScExpertGroups(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTraits& traits,
                          const ScTables& tables, const ScActivationView& a, const ExpertGroups& groups,
                          const ScExpertTask* tasks, int count);

}  // namespace stoch::cuda
