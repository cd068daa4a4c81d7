// SPDX-License-Identifier: Apache-2.0
// How a block of the split kernels finds its work: a row, query heads, and a part of the row's context.
#pragma once

#include "kernels/cuda/attention/split/split.h"

namespace stoch::cuda {

// One row of a launch. The row attends to positions [first, length) of its sequence.
struct SplitRow {
  int32_t index = 0;  // index of the row within the launch, which selects its scratch
  int32_t row = 0;    // index of the row within the pass
  int32_t sequence = 0;
  int32_t first = 0;
  int32_t length = 0;
  int32_t item = 0;  // index of the work item among the items of this row (FindItem)

  __device__ int first_unit() const { return first / kSplitUnit; }
  __device__ int units() const { return (length + kSplitUnit - 1) / kSplitUnit - first_unit(); }
};

__device__ __forceinline__ SplitRow RowAt(const SplitArgs& args, int index) {
  SplitRow at;
  at.index = index;
  at.row = args.row_list != nullptr ? args.row_list[index] : args.row_offset + index;
  // pass.rows was written before the first kernel of the pass, so no wait for the previous kernel is needed.
  const PassRow info = args.attention.pass.rows[at.row];
  at.sequence = info.sequence;
  at.length = info.position + 1;
  at.first = args.attention.window > 0 ? max(at.length - args.attention.window, 0) : 0;
  return at;
}

// Returns the size of a part in units of kSplitUnit positions, chosen so that all rows and head blocks have about
// `blocks` parts in total. Called by all lanes of a warp. Args: SplitArgs or DealtArgs.
template <typename Args>
__device__ inline int PartUnits(const Args& args, int blocks) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  int units = 0;
#pragma unroll 1
  for (int base = 0; base < args.rows; base += 32) {
    if (base + lane < args.rows) units += RowAt(args, base + lane).units();
  }
  units = __reduce_add_sync(0xffffffffu, units) * args.attention.kv.num_kv_heads * args.head_blocks;
  return max((units + blocks - 1) / blocks, 1);
}

__device__ __forceinline__ int PartsOf(const SplitRow& row, int part_units) {
  return (row.units() + part_units - 1) / part_units;
}

// Finds item number `item` of a launch in which a row has count_of(row) items: sets *found to the row, and found->item
// to the item's index in the row. Returns false if `item` is past the last one. Called by all lanes of a warp.
template <typename Args, typename CountOf>
__device__ inline bool FindItem(const Args& args, int item, const CountOf& count_of, SplitRow* found) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll 1
  for (int base = 0; base < args.rows; base += 32) {
    SplitRow row;
    int count = 0;
    if (base + lane < args.rows) {
      row = RowAt(args, base + lane);
      count = count_of(row);
    }
    int end = count;  // inclusive prefix sum: items of this lane's row and of all rows of lower lanes
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, end, s);
      if (lane >= s) end += before;
    }
    const int owner = __popc(__ballot_sync(0xffffffffu, end <= item));
    if (owner < 32) {
      found->index = base + owner;
      found->row = __shfl_sync(0xffffffffu, row.row, owner);
      found->sequence = __shfl_sync(0xffffffffu, row.sequence, owner);
      found->first = __shfl_sync(0xffffffffu, row.first, owner);
      found->length = __shfl_sync(0xffffffffu, row.length, owner);
      found->item = item - __shfl_sync(0xffffffffu, end - count, owner);
      return true;
    }
    item -= __shfl_sync(0xffffffffu, end, 31);
  }
  return false;
}

// Whether one block computes the softmax of a row and query head.
__device__ __forceinline__ bool IsOneBlock(const SplitArgs& args, const SplitRow& row) {
  return args.is_one_block || row.units() <= kSplitSoloUnits;
}
// Returns in how many parts a row's weights are computed; scratch.weight_max has one maximum per part.
__device__ __forceinline__ int WeightParts(const SplitArgs& args, const SplitRow& row) {
  return IsOneBlock(args, row) ? 1 : PartsOf(row, kSplitWeightUnits);
}

__device__ __forceinline__ int64_t HeadIndex(const SplitArgs& args, const SplitRow& row, int head) {
  return static_cast<int64_t>(row.index) * args.attention.num_heads + head;
}
__device__ __forceinline__ const int32_t* PagesOf(const SplitArgs& args, const SplitRow& row) {
  return args.attention.pass.pages + static_cast<int64_t>(row.sequence) * args.attention.pass.max_pages;
}

// Where a position is in the KV cache: its page, and its index `slot` in the page.
struct KvPlace {
  int32_t page;
  int slot;
};
__device__ __forceinline__ KvPlace PlaceOf(const KvView& kv, const int32_t* pages, int t) {
  return {__ldg(pages + (t >> kv.page_shift)), t & (kv.page_tokens - 1)};
}
// KvOf returns the cache that a launch reads, AbsoluteOf the absolute position of position t of this cache. The
// overloads for rows dealt over devices are in dealt.cuh.
__device__ __forceinline__ const KvView& KvOf(const SplitArgs& args) { return args.attention.kv; }
__device__ __forceinline__ int AbsoluteOf(const SplitArgs& /*args*/, int t) { return t; }

// The query heads that a block computes: heads `first` to first + count - 1, which share a KV head.
struct SplitHeads {
  int kv_head = 0;
  int first = 0;
  int count = 0;
  int block = 0;  // index among the head blocks of all KV heads
};
__device__ __forceinline__ SplitHeads HeadsAt(const SplitArgs& args, int block) {
  SplitHeads heads;
  heads.block = block;
  heads.kv_head = block / args.head_blocks;
  const int begin = block % args.head_blocks * args.block_heads;
  heads.first = heads.kv_head * args.attention.group + begin;
  heads.count = min(args.block_heads, args.attention.group - begin);
  return heads;
}

}  // namespace stoch::cuda
