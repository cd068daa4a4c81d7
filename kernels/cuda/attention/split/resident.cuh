// SPDX-License-Identifier: Apache-2.0
// How a block of a resident kernel (resident.cu, resident_lookup.cu) finds its row, query heads and positions, from the
// lengths in device memory.
#pragma once

#include "kernels/cuda/attention/split/work.cuh"

namespace stoch::cuda {

inline constexpr int kResidentWarps = kSplitResidentThreads / 32;

// A block's share of a row. Each unit of 256 positions is cut into `ranks` stripes of stripe() neighbouring positions;
// this block owns stripe number `rank` of every unit. The block's positions in ascending order are its local positions
// 0, 1, ..., count() - 1; local position i is position Token(i) of the sequence.
struct Stripes {
  SplitRow row;
  SplitHeads heads;
  const int32_t* pages = nullptr;
  int item = 0;   // index of the block's work in the launch; blocks that share a row and heads have consecutive items
  int ranks = 1;  // blocks that share the row and heads, a power of two up to kSplitResidentRanks
  int rank = 0;
  int shift = 8;  // log2 of stripe()

  __device__ int stripe() const { return 1 << shift; }
  __device__ int count() const { return row.units() << shift; }
  __device__ int Token(int i) const {
    return ((row.first_unit() + (i >> shift)) << 8) + (rank << shift) + (i & (stripe() - 1));
  }
  // Returns how many of this block's positions are before position t of the sequence: the local position of the first
  // Token(i) >= t.
  __device__ int Local(int t) const {
    const int in_units = t - (row.first_unit() << 8);
    const int in_stripe = min(max((in_units & 255) - (rank << shift), 0), stripe());
    return (in_units >> 8 << shift) + in_stripe;
  }
};
static_assert(kSplitUnit == 1 << 8);

// Returns how many blocks (ranks) share a row of `units` units: the smallest power of two with which each block has at
// most 8 * most positions, but no more than kSplitResidentRanks.
__device__ __forceinline__ int RanksOf(int units, int most) {
  int ranks = 1;
  while (ranks < kSplitResidentRanks && units * 32 > most * ranks) ranks *= 2;
  return ranks;
}

// Fills *found for item `item` of the launch, which is item number `of_row` of the row. A row has `ranks` items for
// each group of heads (HeadsAt).
__device__ __forceinline__ void Assign(const SplitArgs& args, const SplitRow& row, int ranks, int item, int of_row,
                                       Stripes* found) {
  found->row = row;
  found->ranks = ranks;
  found->item = item;
  found->rank = of_row % ranks;
  found->shift = 8 - (31 - __clz(ranks));
  found->heads = HeadsAt(args, of_row / ranks);
  found->pages = PagesOf(args, row);
}

// Finds the work of block `item` of `blocks`; returns false if the block has none. Deeper rows get more blocks: lane l
// tries a limit of 8 * 2^(l / 2) * (2, or 3 for odd l) positions per block, and the smallest limit that needs no more
// than `blocks` blocks decides. If no limit is enough, every row and head block gets one block. Called by all lanes of
// a warp.
// Requires: args.rows <= 32, and at least one block for every row and head block.
__device__ inline bool FindStripes(const SplitArgs& args, int item, int blocks, Stripes* found) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int groups = args.attention.kv.num_kv_heads * args.head_blocks;
  // A single row gets as many ranks as fit in `blocks`, without a search for a limit.
  if (args.rows == 1) {
    int ranks = kSplitResidentRanks;
    while (ranks * groups > blocks) ranks /= 2;
    if (item >= ranks * groups) return false;
    Assign(args, RowAt(args, 0), ranks, item, item, found);
    return true;
  }
  SplitRow row;
  if (lane < args.rows) row = RowAt(args, lane);
  const int units = lane < args.rows ? row.units() : 0;
  const int limit = (lane % 2 == 0 ? 2 : 3) << lane / 2;
  int needed = 0;
#pragma unroll 1
  for (int i = 0; i < args.rows; ++i) needed += RanksOf(__shfl_sync(0xffffffffu, units, i), limit);
  const uint32_t fits = __ballot_sync(0xffffffffu, needed * groups <= blocks);
  const int chosen = __shfl_sync(0xffffffffu, limit, fits != 0 ? __ffs(static_cast<int>(fits)) - 1 : 31);
  const int ranks = lane >= args.rows ? 0 : fits != 0 ? RanksOf(units, chosen) : 1;
  int end = ranks * groups;  // inclusive prefix sum: items of this lane's row and of all rows of lower lanes
#pragma unroll
  for (int s = 1; s < 32; s *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, end, s);
    if (lane >= s) end += before;
  }
  const int owner = __popc(__ballot_sync(0xffffffffu, end <= item));
  if (owner >= args.rows) return false;
  found->row.index = owner;
  found->row.row = __shfl_sync(0xffffffffu, row.row, owner);
  found->row.sequence = __shfl_sync(0xffffffffu, row.sequence, owner);
  found->row.first = __shfl_sync(0xffffffffu, row.first, owner);
  found->row.length = __shfl_sync(0xffffffffu, row.length, owner);
  const int of_row = item - __shfl_sync(0xffffffffu, end - ranks * groups, owner);
  Assign(args, found->row, __shfl_sync(0xffffffffu, ranks, owner), item, of_row, found);
  return true;
}

// The query head that this warp works on in passes over scores, the warp's index among the warps of that head, and the
// number of these warps. A warp whose head is not below heads.count has no work.
struct HeadWarps {
  int head;
  int warp;
  int warps;
};
__device__ __forceinline__ HeadWarps HeadWarpsOf(int heads) {
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int shift = heads > 1 ? 32 - __clz(heads - 1) : 0;
  return {warp & ((1 << shift) - 1), warp >> shift, kResidentWarps >> shift};
}

// Quantized queries of a block: codes `words` [heads][head_dim / 4], and `scales` [heads].
struct Queries {
  const uint32_t* words;
  const float* scales;
};

// Scores of a block, [heads][stride] by local position: in shared memory, or in scratch if the row is too deep for it.
struct Scores {
  float* at;
  int stride;
  bool in_shared;
};

// Calls visit(i) for this thread's share of the multiples of 4 in [0, count); visit handles local positions i to i + 3.
// The threads of all warps of a head (`of`) together take all of them.
template <typename Visit>
__device__ __forceinline__ void ForQuads(const HeadWarps& of, int count, const Visit& visit) {
#pragma unroll 1
  for (int i = (of.warp * 32 + static_cast<int>(threadIdx.x & 31)) * 4; i < count; i += of.warps * 128) visit(i);
}

// Scales of a block's keys and values in shared memory, by local position; null if the row is too deep for shared
// memory.
struct BlockScales {
  const float* k = nullptr;
  const float* v = nullptr;
};

// Returns the offset in KvView::k_scales or v_scales of the scales of local positions i to i + 3; past the row's end,
// the offset of the row's last scales. The second overload returns an address in `scales`.
__device__ __forceinline__ int64_t FourScales(const KvView& kv, const Stripes& b, int i) {
  const int t = min(b.Token(i), b.row.length - 1) & ~3;
  const int32_t page = __ldg(b.pages + (t >> kv.page_shift));
  return kv.Scale(page, b.heads.kv_head, t & (kv.page_tokens - 1));
}
__device__ __forceinline__ const float* FourScales(const KvView& kv, const float* scales, const Stripes& b, int i) {
  return scales + FourScales(kv, b, i);
}
__device__ __forceinline__ float4 LoadScales(const KvView& kv, const float* scales, const float* in_shared,
                                             const Stripes& b, int i) {
  if (in_shared != nullptr) return *reinterpret_cast<const float4*>(in_shared + i);
  return __ldcg(reinterpret_cast<const float4*>(FourScales(kv, scales, b, i)));
}

}  // namespace stoch::cuda
