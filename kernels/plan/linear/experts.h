// SPDX-License-Identifier: Apache-2.0
// SC products of a mixture of experts on a GPU: who multiplies which shape, with how much shared memory and scratch.
//
// As kernels/plan/linear/sc.h says of linears. Nothing here depends on which experts rows choose, which the host
// never knows. Bits: every kernel gives docs/sc_arithmetic.md#5-back-to-real-numbers exactly, so the
// choice is invisible.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

enum class ExpertKernel : uint8_t {
  kLookup,   // sc/experts/lookup.cu: every slot on its own, count rows in shared memory
  kGrouped,  // sc/tensor_core/grouped.cu: the slots of an expert together, in tiles of 192, on binary wgmma
  kPlain,    // families/experts.cu: any operator, one product at a time
};
std::string_view ExpertKernelName(ExpertKernel kernel);

// Of an ExpertLinearCall: matrices of one shape, one of every expert each.
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
  ExpertKernel kernel = ExpertKernel::kPlain;
  int64_t rows_at_once = 0;   // kLookup: rows of x of a launch
  int64_t max_tiles = 0;      // kGrouped: that the slots can need, however they are spread over the experts
  int64_t tiles_at_once = 0;  // kGrouped: whose streams are made for a launch
};

// Requires: rows, row_slots, experts, in_features, out_features >= 1; per-row scopes of activations.
ExpertPlan PlanExperts(const GpuTraits& gpu, const ScTraits& sc, const ExpertShape& shape);

// One launch of ExpertKernel::kLookup.
struct ExpertLookupPlan {
  int blocks = 0;
  int staged = 0;     // chunks of rows of x that a block stages at a time
  int max_tasks = 0;  // (slot, matrix) pairs of the rows of x that a block meets
  int places = 0;     // of all experts' matrices that a block stages before it knows which it needs; 0: too many
  int64_t shared_bytes = 0;
};
ExpertLookupPlan PlanExpertLookup(const GpuTraits& gpu, const ScDims& dims, const ExpertShape& shape, int64_t rows);

// Whether a launch of ExpertKernel::kLookup can add up the slots of a row as CombineExpertsCall says: slots that have
// rows of x of their own, whole rows of top_k slots in a launch.
bool CanCombine(const ExpertPlan& plan, const ExpertShape& shape, int64_t top_k);
inline constexpr int64_t kMaxCombinedSlots = 32;

// Bytes of scratch that a launch takes besides the quantized activations, at most, for 1..max_rows rows of x.
int64_t ExpertLaunchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features, int64_t max_rows);

inline constexpr int64_t kExpertNormBytes = 256 * 4;  // lanes of a second row's norm
inline constexpr int64_t kExpertTaskBytes = 16;

}  // namespace stoch
