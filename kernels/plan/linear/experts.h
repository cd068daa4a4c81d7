// SPDX-License-Identifier: Apache-2.0
// Linears of a mixture of experts on a GPU: routes, how the work is cut, shared memory and scratch.
//
// As kernels/plan/linear/plan.h says of linears. Nothing here depends on which experts rows choose, which the host
// never knows.
#pragma once

#include <cstdint>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/plan.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// Matrices of one shape of an ExpertLinearCall, one of every expert each.
struct ExpertShape {
  int64_t rows = 0;       // of x
  int64_t row_slots = 1;  // slots that share a row of x
  int64_t experts = 0;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t matrices = 1;  // 1..kMaxScTasks
  int64_t slots() const { return rows * row_slots; }
};

struct ExpertPlan {
  LinearRoute route = LinearRoute::kExpertGeneric;
  int64_t rows_at_once = 0;   // kExpertLookup: rows of x of a launch
  int64_t max_tiles = 0;      // kExpertGroups: that the slots can need, however they are spread over the experts
  int64_t tiles_at_once = 0;  // kExpertGroups: whose streams are made for a launch
};

// Requires: rows, row_slots, experts, in_features, out_features >= 1; per-row scopes of activations.
ExpertPlan PlanExperts(const GpuTraits& gpu, const LinearOperand& weights, const ExpertShape& shape);
ExpertPlan PlanExperts(const GpuTraits& gpu, const ScTraits& sc, const ExpertShape& shape);

// One launch of kExpertLookup.
struct ExpertLookupPlan {
  int blocks = 0;
  int staged = 0;     // chunks of rows of x that a block stages at a time
  int max_tasks = 0;  // (slot, matrix) pairs of the rows of x that a block meets
  int places = 0;     // of all experts' matrices that a block stages before it knows which it needs; 0: too many
  int64_t shared_bytes = 0;
};
ExpertLookupPlan PlanExpertLookup(const GpuTraits& gpu, const ScDims& dims, const ExpertShape& shape, int64_t rows);

// Whether a launch of kExpertLookup can add up the slots of a row as CombineExpertsCall says: slots that have
// rows of x of their own, whole rows of top_k slots in a launch.
bool CanCombine(const ExpertPlan& plan, const ExpertShape& shape, int64_t top_k);
inline constexpr int64_t kMaxCombinedSlots = 32;

// The most scratch of 1..max_rows rows of x: f(x), as the weights of one operator take it, and what the launch takes.
int64_t ExpertScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t max_rows);
// Those of a launch of SC alone.
int64_t ExpertLaunchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features, int64_t max_rows);

// Rows, and their outputs, that are gathered for an expert at a time where the host groups slots (mixed/experts.h).
inline constexpr int64_t kGroupedRowBytes = int64_t{32} << 20;

inline constexpr int64_t kExpertNormBytes = 256 * 4;  // lanes of a second row's norm
inline constexpr int64_t kExpertTaskBytes = 16;

}  // namespace stoch
