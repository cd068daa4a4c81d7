// SPDX-License-Identifier: Apache-2.0
// Device side of the rule that picks stream lengths (kernels/sc/sc_lengths.h): a row's metric, the metric's level, and
// the level's slot. A level, 0 .. num_thresholds + 1, says where the metric lies among the rule's thresholds
// (LengthLevel); a slot is the index of a stream length in LengthView::tables.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {

// The level of a normalized metric u. Chunk rule: number of thresholds below u. Row rule: index of the first threshold
// that u reaches, num_thresholds if none; num_thresholds + 1 if the rule has an escape and u exceeds its threshold.
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

// The level of a metric under ScNormalise::kFixed: the metric is scaled to 0..1 between the constants lo and hi of the
// rule.
__device__ inline int FixedLevel(const LengthView& view, float metric) {
  const float u = (metric - view.lo) / (view.hi - view.lo);
  return LengthLevel(view, u > 0.0f ? (u < 1.0f ? u : 1.0f) : 0.0f);
}

// The level of a metric under ScNormalise::kCall: the metric is scaled to 0..1 between lo and hi, the least and the
// largest metric of the call.
__device__ inline int CallLevel(const LengthView& view, float metric, float lo, float hi) {
  constexpr float kNoSpread = 1e-8f;
  const float range = hi - lo;
  if (view.scope == ScLengthScope::kChunk) {
    return LengthLevel(view, (metric - lo) / (range < kNoSpread ? kNoSpread : range));
  }
  return range < kNoSpread ? 0 : LengthLevel(view, (metric - lo) / range);
}

// The slot of a level in a chunk; a rule may have other lengths for other bands of chunks.
__device__ inline uint8_t SlotOfLevel(const LengthView& view, int level, int64_t chunk) {
  const int band = view.bands == nullptr ? 0 : view.bands[chunk];
  return view.slot_of[band * (view.num_thresholds + 2) + level];
}

// Copy in shared memory of the arrays that a rule reads. The reads of a rule depend on each other, so each one would
// wait for global memory.
struct StagedRule {
  float thresholds[kMaxByteTables];
  uint8_t slots[kMaxRuleSlots];
};
__device__ inline bool IsStageable(const LengthView& view) {
  return view.has_rule && view.thresholds != nullptr && view.num_thresholds <= kMaxByteTables &&
         view.num_slot_of <= kMaxRuleSlots;
}
// Copies the arrays of the view's rule to shared memory if they fit (IsStageable). Called by `threads` threads, of
// which this is number `thread`; a barrier of these threads must follow. Reads nothing that earlier kernels write, so
// WaitForPrevious is not needed.
__device__ inline void StageRule(const LengthView& view, StagedRule& to, int thread, int threads) {
  if (!IsStageable(view)) return;
  for (int i = thread; i < view.num_thresholds; i += threads) to.thresholds[i] = view.thresholds[i];
  for (int i = thread; i < view.num_slot_of; i += threads) to.slots[i] = view.slot_of[i];
}
// A copy of `view` whose rule reads the shared memory that StageRule filled.
__device__ inline LengthView Staged(const LengthView& view, const StagedRule& from) {
  LengthView staged = view;
  if (IsStageable(view)) {
    staged.thresholds = from.thresholds;
    staged.slot_of = from.slots;
  }
  return staged;
}

// The signed metric of a row. amax: largest magnitude of the row; l2: root of the sum of squares. An argument that
// view.metric does not use may have any value.
__device__ inline float SignedMetric(const LengthView& view, float amax, float l2) {
  switch (view.metric) {
    case ScMetric::kAmax: return view.sign * amax;
    case ScMetric::kL2: return view.sign * l2;
    case ScMetric::kCrest: break;
  }
  return view.sign * (amax / (l2 + 1e-12f));
}

// The signed metric of n numbers x(0), x(1), ..., returned to every thread. Called by a block of kRowLanes threads.
// shared: kRowLanes floats of scratch.
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
  __syncthreads();  // afterwards the caller may reuse `shared`
  LengthView view;
  view.metric = metric;
  view.sign = sign;
  return SignedMetric(view, amax, l2);
}

}  // namespace stoch::cuda
