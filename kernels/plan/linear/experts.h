// SPDX-License-Identifier: Apache-2.0
// Linears of a mixture of experts on a GPU: routes, how the work is cut, shared memory and scratch.
//
// As in kernels/plan/linear/plan.h, nothing else chooses. No plan depends on which experts the rows choose, because the
// host does not know it.
#pragma once

#include <cstdint>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/plan.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// Matrices of an ExpertLinearCall that one launch takes: every expert has `matrices` of them, all of one shape.
struct ExpertShape {
  int64_t rows = 0;       // rows of x
  int64_t row_slots = 1;  // slots that share a row of x
  int64_t experts = 0;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t matrices = 1;  // 1..kMaxScTasks
  int64_t slots() const { return rows * row_slots; }
};

struct ExpertPlan {
  LinearRoute route = LinearRoute::kExpertGeneric;
  int64_t rows_at_once = 0;  // kExpertLookup: rows of x of a launch
  int64_t max_tiles = 0;  // kExpertGroups: most tiles that the slots can need, however they are spread over the experts
  int64_t tiles_at_once = 0;  // kExpertGroups: tiles whose streams one launch makes
};

// Requires: rows, row_slots, experts, in_features, out_features >= 1; per-row scopes of activations.
ExpertPlan PlanExperts(const GpuTraits& gpu, const LinearOperand& weights, const ExpertShape& shape);
ExpertPlan PlanExperts(const GpuTraits& gpu, const ScTraits& sc, const ExpertShape& shape);

// One launch of kExpertLookup.
struct ExpertLookupPlan {
  int blocks = 0;
  int staged = 0;     // chunks of rows of x that a block stages at a time
  int max_tasks = 0;  // most (slot, matrix) pairs of the rows of x that a block meets
  // Places of all experts' matrices, which a block stages before it knows which ones it needs; 0: too many.
  int places = 0;
  int64_t shared_bytes = 0;
};
ExpertLookupPlan PlanExpertLookup(const GpuTraits& gpu, const ScDims& dims, const ExpertShape& shape, int64_t rows);

// Whether a launch of kExpertLookup can add up the slots of a token as CombineExpertsCall says: if every slot has its
// own row of x, and a launch takes all top_k slots of a token.
bool CanCombine(const ExpertPlan& plan, const ExpertShape& shape, int64_t top_k);
inline constexpr int64_t kMaxCombinedSlots = 32;

// Most bytes of scratch for 1..max_rows rows of x: f(x) in the form that the weights take, and the scratch of the
// launch.
int64_t ExpertScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t max_rows);
// The scratch of the launch alone, for SC.
int64_t ExpertLaunchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features, int64_t max_rows);

// Bytes of the rows that are gathered for an expert at a time, and of their outputs, if the host groups slots
// (mixed/experts.h).
inline constexpr int64_t kGroupedRowBytes = int64_t{32} << 20;

inline constexpr int64_t kExpertNormBytes = 256 * 4;  // lane sums of a second row's norm
inline constexpr int64_t kExpertTaskBytes = 16;

}  // namespace stoch
