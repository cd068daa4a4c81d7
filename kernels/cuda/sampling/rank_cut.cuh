// SPDX-License-Identifier: Apache-2.0
// Finds where a running sum of weights over tokens, ranked by logit, reaches a target (top_k, top_p). Tokens are
// counted by ranges of logits instead of sorted.
#pragma once

#include <cstdint>

#include "kernels/cuda/sampling/row_scan.cuh"

namespace stoch::cuda::sampling {

// Once at most this many candidates are left, a thread ranks each of them.
inline constexpr int kMaxCandidates = 256;

// Shared memory of CutRanking, in every block of the cluster. Candidates are gathered in the cluster's first block.
struct CutShared {
  uint64_t ranks[kMaxCandidates];
  uint64_t weights[kMaxCandidates];
  int32_t count;
  uint64_t cut;  // the result, in every block
};

// Weights of 1 for CutRanking: the running sum counts tokens, for top_k.
struct CountOne {
  __device__ uint64_t operator()(float) const { return 1; }
};

// Returns the rank (RankKey) of the token at which the running sum of weight(logit), over tokens in ranking order,
// reaches `target`. low, high: keys (OrderedKey) such that no token is above `high`, and the tokens from `low` on reach
// the target.
// Requires: target >= 1; weight depends only on the logit. Called by all threads of the cluster together.
//
// Splits the range of keys into four parts again and again until few tokens are left: first at equal steps of the
// logit, since logits spread over values, then at equal steps of the key, which ends for any logits.
template <typename Weight>
__device__ uint64_t CutRanking(RowScan& scan, CutShared& shared, uint32_t low, uint32_t high, uint64_t target,
                               const Weight& weight) {
  constexpr int kSplitsByValue = 12;
  uint64_t above = 0;                              // weight of the tokens with keys from `end` on
  uint64_t end = static_cast<uint64_t>(high) + 1;  // the key of the result is in [low, end)
  uint64_t inside = ~uint64_t{0};                  // number of tokens with keys in [low, end)
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
    uint64_t sums[6] = {};  // by bound i: weight (i) and number (3 + i) of the tokens in [bounds[i], end)
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
    // `part` is the highest bound such that the tokens from it on reach the target; -1 if those from the first bound on
    // do not.
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
    // All remaining tokens have the same logit, so they rank by id, the lowest first.
    const uint64_t own = weight(KeyToFloat(low));
    const uint64_t needed = (target - above + own - 1) / own;
    const int32_t id = scan.Locate([&](int32_t, float logit) -> uint64_t { return OrderedKey(logit) == low ? 1 : 0; },
                                   [&](uint64_t) { return needed - 1; });
    return RankKey(KeyToFloat(low), id);
  }

  // At most kMaxCandidates candidates are left: the cluster's first block gathers them and ranks each by a thread.
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
      // This token is the first that reaches the target; a token of weight 0 never does.
      if (running < target && running + shared.weights[i] >= target) {
        for (int b = 0; b < Cluster::Size(); ++b) Cluster::At(&shared, b)->cut = shared.ranks[i];
      }
    }
  }
  Cluster::Sync();
  return shared.cut;
}

}  // namespace stoch::cuda::sampling
