// SPDX-License-Identifier: Apache-2.0
// The last of the first tokens of a ranking that reach a target together, found by counting instead of sorting.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/row_scan.cuh"

namespace stoch::cuda::sampling {

// Candidates that are ranked one by one once so few are left.
inline constexpr int kMaxCandidates = 256;

// Shared memory of CutRanking; what the block of rank 0 has is used.
struct CutShared {
  uint64_t ranks[kMaxCandidates];
  uint64_t weights[kMaxCandidates];
  int32_t count;
  uint64_t cut;  // in every block
};

// One candidate of 1: top_k counts tokens.
struct CountOne {
  __device__ uint64_t operator()(float) const { return 1; }
};

// The rank (RankKey) of the token at which the running sum of weight(logit), in ranking order, reaches `target`.
// `low` and `high` are keys: no token above `high`, and those from `low` on reach the target.
// Requires: target >= 1; weight depends on the logit alone; all threads of the cluster call it together.
//
// Keys split in four until few tokens are left: first by value, as logits spread, then by key, which ends for any.
template <typename Weight>
__device__ uint64_t CutRanking(RowScan& scan, CutShared& shared, uint32_t low, uint32_t high, uint64_t target,
                               const Weight& weight) {
  constexpr int kSplitsByValue = 12;
  uint64_t above = 0;                              // weight of the keys from `end` on
  uint64_t end = static_cast<uint64_t>(high) + 1;  // the cut's key is in [low, end)
  uint64_t inside = ~uint64_t{0};                  // tokens there
  for (int split = 0; end - low > 1 && inside > kMaxCandidates; ++split) {
    const uint64_t width = end - low;
    uint32_t bounds[3];
    if (split < kSplitsByValue && width > 64) {
      const float first = KeyToFloat(low);
      const float last = KeyToFloat(static_cast<uint32_t>(end - 1));
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const float part = static_cast<float>(i + 1) * 0.25f;
        const uint32_t key = OrderedKey(first * (1.0f - part) + last * part);
        bounds[i] = max(low + 1 + i, min(key, static_cast<uint32_t>(end - 3 + i)));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        bounds[i] = low + max(1u, static_cast<uint32_t>((width * static_cast<uint64_t>(i + 1)) >> 2));
      }
    }
    uint64_t sums[6] = {};  // weight and number of the tokens inside from each bound on
    uint64_t all = 0;
    scan.ForEach([&](int32_t, float logit) {
      const uint32_t key = OrderedKey(logit);
      if (key < low || key >= end) return;
      ++all;
      if (key < bounds[0]) return;
      const uint64_t own = weight(logit);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (key >= bounds[i]) {
          sums[i] += own;
          sums[3 + i] += 1;
        }
      }
    });
    scan.Sum(sums);
    // The highest bound from which on the target is reached; below the first, the rest of what is inside.
    int part = -1;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (above + sums[i] >= target) part = i;
    }
    if (part < 2) {
      above += sums[part + 1];
      end = bounds[part + 1];
    }
    if (part >= 0) {
      inside = sums[3 + part] - (part < 2 ? sums[3 + part + 1] : 0);
      low = bounds[part];
    } else {
      uint64_t total[1] = {all};
      scan.Sum(total);
      inside = total[0] - sums[3];
    }
  }
  if (end - low == 1 && inside > kMaxCandidates) {
    // One value many times: the lowest ids of it.
    const uint64_t own = weight(KeyToFloat(low));
    const uint64_t needed = (target - above + own - 1) / own;
    const int32_t id = scan.Locate([&](int32_t, float logit) -> uint64_t { return OrderedKey(logit) == low ? 1 : 0; },
                                   [&](uint64_t) { return needed - 1; });
    return RankKey(KeyToFloat(low), id);
  }

  // Few candidates: the first block ranks them.
  if (threadIdx.x == 0) shared.count = 0;
  Cluster::Sync();
  CutShared* first = Cluster::At(&shared, 0);
  scan.ForEach([&](int32_t id, float logit) {
    const uint32_t key = OrderedKey(logit);
    if (key < low || key >= end) return;
    const int32_t index = atomicAdd(&first->count, 1);
    first->ranks[index] = RankKey(logit, id);
    first->weights[index] = weight(logit);
  });
  Cluster::Sync();
  if (Cluster::Rank() == 0) {
    const int32_t count = shared.count;
    const int i = static_cast<int>(threadIdx.x);
    if (i < count) {
      uint64_t running = above;
      for (int j = 0; j < count; ++j) running += shared.ranks[j] > shared.ranks[i] ? shared.weights[j] : 0;
      // The first that reaches the target; a weight of 0 never does.
      if (running < target && running + shared.weights[i] >= target) {
        for (int b = 0; b < Cluster::Size(); ++b) Cluster::At(&shared, b)->cut = shared.ranks[i];
      }
    }
  }
  Cluster::Sync();
  return shared.cut;
}

}  // namespace stoch::cuda::sampling
