// SPDX-License-Identifier: Apache-2.0
// How kernels read dealt rows (../dealt.h): the cache of this device's stripe, indexed by local position (the
// position's index among those that the device owns), and words that other devices wrote.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/split/dealt.h"
#include "kernels/cuda/attention/split/work.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

// Returns the smallest position that shares a segment of dilated attention with `position`, over all pairs. Requires:
// pairs.count > 0.
__device__ __forceinline__ int FirstSegment(const DilatedPairs& pairs, int position) {
  int first = position;
#pragma unroll 1
  for (int i = 0; i < pairs.count; ++i) first = min(first, position / pairs.segment[i] * pairs.segment[i]);
  return first;
}

__device__ __forceinline__ SplitRow RowAt(const DealtArgs& args, int index) {
  const DealtQuery query = args.queries[index];
  SplitRow at;
  at.index = at.row = index;
  at.sequence = query.sequence;
  at.length = args.stripe.Below(query.position + 1);
  const int window = args.attention.window;
  int first = window > 0 ? max(query.position + 1 - window, 0) : 0;
  if (args.pairs.count > 0) first = max(first, FirstSegment(args.pairs, query.position));
  at.first = first > 0 ? args.stripe.Below(first) : 0;
  return at;
}

// KV cache of this device's stripe, indexed by local position. A page of the pass has 1 << local_shift positions of
// this device, and 1 << count_shift pages of the pass share one page of the cache.
struct DealtKv : KvView {
  int32_t local_shift = 0;
  int32_t count_shift = 0;
};
__device__ __forceinline__ DealtKv KvOf(const DealtArgs& args) {
  DealtKv kv;
  static_cast<KvView&>(kv) = args.attention.kv;
  kv.local_shift = args.page_shift;
  kv.count_shift = args.stripe.count_shift;
  return kv;
}
__device__ __forceinline__ KvPlace PlaceOf(const DealtKv& kv, const int32_t* pages, int t) {
  const int32_t page = __ldg(pages + (t >> kv.local_shift));
  const int share = page & ((1 << kv.count_shift) - 1);
  return {page >> kv.count_shift, (share << kv.local_shift) + (t & ((1 << kv.local_shift) - 1))};
}

__device__ __forceinline__ int AbsoluteOf(const DealtArgs& args, int t) { return args.stripe.Absolute(t); }

// Loads a word that another device wrote, or that was copied from it. Requires: this kernel's stream has waited for an
// event recorded after the write.
__device__ __forceinline__ uint32_t LoadShared(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ float LoadShared(const float* from) {
  return BitsToFloat(LoadShared(reinterpret_cast<const uint32_t*>(from)));
}
__device__ __forceinline__ int32_t LoadShared(const int32_t* from) {
  return static_cast<int32_t>(LoadShared(reinterpret_cast<const uint32_t*>(from)));
}

// Returns the largest weight over all devices of the row and query head `index` (HeadIndex).
__device__ __forceinline__ float LargestWeight(const DealtArgs& args, int64_t index) {
  uint32_t bits = 0;
  for (int i = 0; i < args.stripes; ++i) bits = max(bits, LoadShared(args.shares[i].weight_max + index));
  return BitsToFloat(bits);
}

// Addresses of a row's quantized queries in the share of the device that owns the row: codes `words` [heads][head_dim /
// 4] and `scales` [heads]. CodesOf returns them from query head `head` on.
struct DealtQueryCodes {
  const uint32_t* words;
  const float* scales;
};
__device__ __forceinline__ DealtQueryCodes CodesOf(const DealtArgs& args, const SplitRow& row, int head) {
  const DealtQuery query = args.queries[row.index];
  const QueryShare& share = args.shares[query.owner];
  const int64_t vector =
      static_cast<int64_t>(query.owner_row - args.first_own[query.owner]) * args.attention.num_heads + head;
  return {share.words + vector * (args.attention.kv.head_dim / 4), share.scales + vector};
}

// Launches a kernel of single rows with PDL (programmatic dependent launch); with DealtArgs without PDL, because the
// kernel's stream waits for events of other devices, not only for the previous kernel.
template <typename Args>
void LaunchRows(DeviceContext& ctx, void (*kernel)(const Args), int blocks, int threads, int64_t shared_bytes,
                const Args& args) {
  const auto shared = static_cast<size_t>(shared_bytes);
  AllowShared(ctx, kernel, shared);
  const dim3 grid(static_cast<unsigned>(blocks));
  const dim3 block(static_cast<unsigned>(threads));
  if constexpr (std::is_same_v<Args, DealtArgs>) {
    kernel<<<grid, block, shared, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("a kernel of dealt rows");
  } else {
    LaunchOverlapped(ctx, kernel, grid, block, shared, args);
  }
}

}  // namespace stoch::cuda
