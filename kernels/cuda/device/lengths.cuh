// SPDX-License-Identifier: Apache-2.0
// From a metric to the slot of a row's stream length, and the metric of a row by a block (kernels/sc/sc_lengths.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {

__device__ inline int LengthLevel(const LengthView& view, float u) {
  if (view.scope == ScLengthScope::kChunk) {
    int level = 0;
    for (int i = 0; i < view.num_thresholds; ++i) level += view.thresholds[i] < u ? 1 : 0;
    return level;
  }
  if (view.escapes && static_cast<double>(u) > view.escape_threshold) return view.num_thresholds + 1;
  int level = 0;
  while (level < view.num_thresholds && u < view.thresholds[level]) ++level;
  return level;
}

// The level of a metric between constants of the table.
__device__ inline int FixedLevel(const LengthView& view, float metric) {
  const float u = (metric - view.lo) / (view.hi - view.lo);
  return LengthLevel(view, u > 0.0f ? (u < 1.0f ? u : 1.0f) : 0.0f);
}

// As above, between the extremes of a call.
__device__ inline int CallLevel(const LengthView& view, float metric, float lo, float hi) {
  constexpr float kNoSpread = 1e-8f;
  const float range = hi - lo;
  if (view.scope == ScLengthScope::kChunk) {
    return LengthLevel(view, (metric - lo) / (range < kNoSpread ? kNoSpread : range));
  }
  return range < kNoSpread ? 0 : LengthLevel(view, (metric - lo) / range);
}

__device__ inline uint8_t SlotOfLevel(const LengthView& view, int level, int64_t chunk) {
  const int band = view.bands == nullptr ? 0 : view.bands[chunk];
  return view.slot_of[band * (view.num_thresholds + 2) + level];
}

// Copy in shared memory of the arrays that a rule reads: its reads are one after the other, and each would be a wait.
struct StagedRule {
  float thresholds[kMaxByteTables];
  uint8_t slots[kMaxRuleSlots];
};
__device__ inline bool IsStageable(const LengthView& view) {
  return view.has_rule && view.thresholds != nullptr && view.num_thresholds <= kMaxByteTables &&
         view.num_slot_of <= kMaxRuleSlots;
}
// Brings the rule of a view, where it fits, by the threads [0, threads), of which this is one. It does not depend on
// earlier kernels. A barrier makes it visible.
__device__ inline void StageRule(const LengthView& view, StagedRule& to, int thread, int threads) {
  if (!IsStageable(view)) return;
  for (int i = thread; i < view.num_thresholds; i += threads) to.thresholds[i] = view.thresholds[i];
  for (int i = thread; i < view.num_slot_of; i += threads) to.slots[i] = view.slot_of[i];
}
// The view that reads there what StageRule brought.
__device__ inline LengthView Staged(const LengthView& view, const StagedRule& from) {
  LengthView staged = view;
  if (IsStageable(view)) {
    staged.thresholds = from.thresholds;
    staged.slot_of = from.slots;
  }
  return staged;
}

// The signed metric of a row from its largest magnitude and the root of the sum of its squares; what a metric does not
// need may be anything.
__device__ inline float SignedMetric(const LengthView& view, float amax, float l2) {
  switch (view.metric) {
    case ScMetric::kAmax: return view.sign * amax;
    case ScMetric::kL2: return view.sign * l2;
    case ScMetric::kCrest: break;
  }
  return view.sign * (amax / (l2 + 1e-12f));
}

// The signed metric of n numbers x(0), x(1), ..., in every thread.
// Requires: a block of kRowLanes threads; `shared` has kRowLanes floats.
template <typename Value>
__device__ float BlockMetric(ScMetric metric, float sign, int64_t n, float* shared, const Value& x) {
  float largest = 0.0f;
  float lane = 0.0f;
  for (int64_t i = threadIdx.x; i < n; i += kRowLanes) {
    const float value = x(i);
    const float magnitude = BitsToFloat(FloatToBits(value) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
    lane = Fma(value, value, lane);
  }
  const float amax = metric == ScMetric::kL2 ? 0.0f : BlockMax(largest, shared);
  const float l2 = metric == ScMetric::kAmax ? 0.0f : Sqrt(BlockFoldLanes(lane, shared));
  __syncthreads();  // `shared` is free again
  LengthView view;
  view.metric = metric;
  view.sign = sign;
  return SignedMetric(view, amax, l2);
}

}  // namespace stoch::cuda
