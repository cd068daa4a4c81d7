// SPDX-License-Identifier: Apache-2.0
// Positions that dilated attention admits to a row and head (kernels/dilated.h), for kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/dilated.h"

namespace stoch::cuda {

// The pairs of a call; passed by value.
struct DilatedPairs {
  int32_t count = 0;  // 0: attention is dense
  int32_t segment[kMaxDilatedPairs] = {};
  int32_t dilation[kMaxDilatedPairs] = {};
  int32_t head[kMaxDilatedPairs] = {};  // of query head 0 of the call: its number in the model mod the dilation
};

// Requires: at most kMaxDilatedPairs pairs; first_head >= 0.
inline DilatedPairs MakeDilatedPairs(std::span<const DilatedPair> pairs, int64_t first_head) {
  constexpr int64_t kBeyond = std::numeric_limits<int32_t>::max();  // any position and any head
  DilatedPairs view;
  for (const DilatedPair& pair : pairs) {
    view.segment[view.count] = static_cast<int32_t>(std::min(pair.segment, kBeyond));
    view.dilation[view.count] = static_cast<int32_t>(std::min(pair.dilation, kBeyond));
    view.head[view.count] = static_cast<int32_t>(first_head % view.dilation[view.count]);
    ++view.count;
  }
  return view;
}

// The longest segment of all pairs; 0: attention is dense.
inline int64_t LongestSegment(const DilatedPairs& pairs) {
  int64_t segment = 0;
  for (int i = 0; i < pairs.count; ++i) segment = std::max<int64_t>(segment, pairs.segment[i]);
  return segment;
}

#if defined(__CUDACC__)
// Positions admitted to one row and head: by pair i first[i], first[i] + dilation[i], ... up to its own.
// In shared memory, made by the block. Requires of t: at most the row's own position.
struct AdmittedRow {
  int32_t count;
  int32_t first[kMaxDilatedPairs];
  int32_t dilation[kMaxDilatedPairs];

  // first_seen: where the row's window begins. Requires: all threads of a block of at least kMaxDilatedPairs; a barrier
  // before any query.
  __device__ __forceinline__ void Find(const DilatedPairs& pairs, int head, int position, int first_seen) {
    const int i = static_cast<int>(threadIdx.x);
    if (i == 0) count = pairs.count;
    if (i >= pairs.count) return;
    const auto step = static_cast<uint32_t>(pairs.dilation[i]);
    const int begin = max(first_seen, position / pairs.segment[i] * pairs.segment[i]);
    const uint32_t residue = (static_cast<uint32_t>(pairs.head[i]) + static_cast<uint32_t>(head)) % step;
    const uint32_t ahead = (residue + step - static_cast<uint32_t>(begin) % step) % step;
    first[i] = static_cast<int32_t>(min(static_cast<uint32_t>(begin) + ahead, 0x7fffffffu));
    dilation[i] = pairs.dilation[i];
  }
  // The first position that any pair might admit.
  __device__ __forceinline__ int Begin() const {
    int begin = 0x7fffffff;
    for (int i = 0; i < count; ++i) begin = min(begin, first[i]);
    return begin;
  }
  __device__ __forceinline__ bool Admits(int pair, int t) const {
    return t >= first[pair] && static_cast<uint32_t>(t - first[pair]) % static_cast<uint32_t>(dilation[pair]) == 0;
  }
  // How many pairs admit position t.
  __device__ __forceinline__ int Times(int t) const {
    int times = 0;
    for (int i = 0; i < count; ++i) times += Admits(i, t) ? 1 : 0;
    return times;
  }
  // Whether a pair before this one admits position t.
  __device__ __forceinline__ bool IsTaken(int pair, int t) const {
    for (int i = 0; i < pair; ++i) {
      if (Admits(i, t)) return true;
    }
    return false;
  }
  // Positions that a pair admits to the row at `position`.
  __device__ __forceinline__ int Size(int pair, int position) const {
    return position < first[pair] ? 0 : (position - first[pair]) / dilation[pair] + 1;
  }
};
#endif

}  // namespace stoch::cuda
