// SPDX-License-Identifier: Apache-2.0
// SC products of a mixture of experts on binary wgmma: the prefill kernel (prefill.h) over tiles of slots that chose
// one expert. A slot is a (row of x, chosen expert) pair; the device sorts slots into tiles (sc/experts/groups.h), so
// the host never waits for the router's choice.
#pragma once

#include "kernels/cuda/sc/experts/groups.h"
#include "kernels/cuda/sc/experts/lookup.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/plan/linear/experts.h"

namespace stoch::cuda {

// tasks[i].out[s] = x of slot s @ w_i[expert of s]^T for every slot s and `count` tasks of one shape. `a`: the
// quantized rows of x; `groups`: tiles of LaunchGroupSlots.
// Requires: a plan whose route is kExpertGroups; 1 <= count <= kMaxScTasks.
// Scratch:  streams of plan.tiles_at_once tiles, from ctx.workspace.
void LaunchScExpertGroups(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTraits& traits,
                          const ScTables& tables, const ScActivationView& a, const ExpertGroups& groups,
                          const ScExpertTask* tasks, int count);

}  // namespace stoch::cuda
