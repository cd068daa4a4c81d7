// SPDX-License-Identifier: Apache-2.0
// Linears of a mixture of experts on a GPU: routes, how the work is cut, shared memory and scratch.
//
// As in kernels/plan/linear/plan.h, nothing else chooses. No plan depends on which experts the rows choose, because the
// host does not know it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/handover.h"
#include "kernels/plan/linear/plan.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

struct ExpertPlan {
  LinearRoute route = LinearRoute::kExpertGeneric;
  int64_t rows_at_once = 0;  // kExpertLookup: rows of x of a launch
  int64_t max_tiles = 0;  // kExpertGroups: most tiles that the slots can need, however they are spread over the experts
  int64_t tiles_at_once = 0;  // kExpertGroups: tiles whose streams one launch makes
};

// weights: kMixed with is_alone only if all experts have it. Requires: rows, row_slots, experts, in_features,
// out_features >= 1.
ExpertPlan PlanExperts(const GpuTraits& gpu, const LinearOperand& weights, const ExpertShape& shape,
                       const LinearPass& pass = {});
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
// How the sums of such a launch leave: by words if the slots of the call are those of one token.
Handover CombinedHandover(const ExpertPlan& plan, const ExpertShape& shape, int64_t top_k);

// Names for users the route of experts with this specification: "expert-lookup", "rows by expert, because smooth".
std::string ExpertRouteText(const GpuTraits& gpu, const LinearSpec& spec, const ExpertShape& shape);

// Most bytes of scratch for 1..max_rows rows of x, none of which chooses an expert twice: f(x) in the form that the
// weights take, and the scratch of the launch.
int64_t ExpertScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t max_rows);
// The scratch of the launch alone, for SC.
int64_t ExpertLaunchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features, int64_t max_rows);

inline constexpr int64_t kExpertNormBytes = 256 * 4;  // lane sums of a second row's norm
inline constexpr int64_t kExpertTaskBytes = 16;

}  // namespace stoch
