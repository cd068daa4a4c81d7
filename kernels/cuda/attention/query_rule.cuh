// SPDX-License-Identifier: Apache-2.0
// The stream length of a query: from its head's vector to the slot, by a warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/math/reduce.h"

namespace stoch::cuda {

// The signed metric of a head's vector, in every lane: BlockMetric by a warp. `squares`: kRowLanes floats of its own.
template <int kPairs>
__device__ inline float HeadMetric(const LengthView& view, const HeadVector<kPairs>& x, int half, int lane,
                                   float* squares) {
  const float amax = WarpMaxAbs(x);
  if (view.metric == ScMetric::kAmax) return view.sign * amax;
  constexpr int kEach = kRowLanes / 32;
#pragma unroll
  for (int k = 0; k < kEach; ++k) squares[k * 32 + lane] = 0.0f;
  __syncwarp();
  ForEachDim(x, half, lane, [&](int i, float value) { squares[i] = Fma(value, value, 0.0f); });
  __syncwarp();
  float lanes[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) lanes[k] = squares[k * 32 + lane];
  float sum = FoldLanes<kEach>(lanes);
#pragma unroll
  for (int s = 16; s > 0; s /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, s);
  return SignedMetric(view, amax, Sqrt(sum));
}

// What finding it takes, in shared memory: rule, tables of all slots, room for a metric.
struct QueryRule {
  StagedRule rule;
  alignas(16) ByteTable tables[kMaxByteTables];
  float squares[kRowLanes];

  // By the warp that calls SlotOf later. Nothing of it depends on earlier kernels.
  // Requires: view.bytes, which are kMaxByteTables at most.
  __device__ void Load(const LengthView& view, int lane) {
    StageRule(view, rule, lane, 32);
    if (lane < view.slots) tables[lane] = view.bytes[lane];
  }
  // In every lane of the warp.
  template <int kPairs>
  __device__ int SlotOf(const LengthView& lengths, const HeadVector<kPairs>& x, int half, int lane) {
    __syncwarp();
    const LengthView view = Staged(lengths, rule);
    if (!view.has_rule) return 0;
    return SlotOfLevel(view, FixedLevel(view, HeadMetric(view, x, half, lane, squares)), 0);
  }
};

}  // namespace stoch::cuda
