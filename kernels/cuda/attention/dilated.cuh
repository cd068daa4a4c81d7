// SPDX-License-Identifier: Apache-2.0
// Device functions for dilated attention (kernels/dilated.h): which positions a row and query head may attend to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/dilated.h"

namespace stoch::cuda {

// The (segment, dilation) pairs of a call in tokens; passed by value.
struct DilatedPairs {
  int32_t count = 0;  // number of pairs; 0: attention is dense
  int32_t segment[kMaxDilatedPairs] = {};
  int32_t dilation[kMaxDilatedPairs] = {};
  // first_head mod the pair's dilation; first_head is the number in the model of query head 0 of the call
  int32_t head[kMaxDilatedPairs] = {};
};

// Pairs as kernels take them; sizes beyond 2^31 - 1 are clamped. Requires: at most kMaxDilatedPairs pairs, first_head
// not negative.
inline DilatedPairs MakeDilatedPairs(std::span<const DilatedPair> pairs, int64_t first_head) {
  constexpr int64_t kBeyond = std::numeric_limits<int32_t>::max();  // larger than any position and any head
  DilatedPairs view;
  for (const DilatedPair& pair : pairs) {
    view.segment[view.count] = static_cast<int32_t>(std::min(pair.segment, kBeyond));
    view.dilation[view.count] = static_cast<int32_t>(std::min(pair.dilation, kBeyond));
    view.head[view.count] = static_cast<int32_t>(first_head % view.dilation[view.count]);
    ++view.count;
  }
  return view;
}

// The longest segment of all pairs; 0 if attention is dense.
inline int64_t LongestSegment(const DilatedPairs& pairs) {
  int64_t segment = 0;
  for (int i = 0; i < pairs.count; ++i) segment = std::max<int64_t>(segment, pairs.segment[i]);
  return segment;
}

#if defined(__CUDACC__)
// The positions that one row and query head may attend to. Pair i admits first[i], first[i] + dilation[i], ... up to
// the row's own position. Lies in shared memory. Requires: positions t given to the functions are at most the row's
// own.
struct AdmittedRow {
  int32_t count;
  int32_t first[kMaxDilatedPairs];
  int32_t dilation[kMaxDilatedPairs];

  // Fills the struct. first_seen: first position of the row's sliding window. Called by all threads of a block of at
  // least kMaxDilatedPairs threads; the caller puts a barrier before any other call.
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
  // Returns the smallest first[i], the first admitted position; larger than the row's own position if none is admitted.
  __device__ __forceinline__ int Begin() const {
    int begin = 0x7fffffff;
    for (int i = 0; i < count; ++i) begin = min(begin, first[i]);
    return begin;
  }
  // Whether pair number `pair` admits position t.
  __device__ __forceinline__ bool Admits(int pair, int t) const {
    return t >= first[pair] && static_cast<uint32_t>(t - first[pair]) % static_cast<uint32_t>(dilation[pair]) == 0;
  }
  // How many pairs admit position t.
  __device__ __forceinline__ int Times(int t) const {
    int times = 0;
    for (int i = 0; i < count; ++i) times += Admits(i, t) ? 1 : 0;
    return times;
  }
  // Whether a pair before `pair` admits position t.
  __device__ __forceinline__ bool IsTaken(int pair, int t) const {
    for (int i = 0; i < pair; ++i) {
      if (Admits(i, t)) return true;
    }
    return false;
  }
};
#endif

}  // namespace stoch::cuda
