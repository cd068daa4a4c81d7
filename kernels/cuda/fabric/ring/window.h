// SPDX-License-Identifier: Apache-2.0
// Kernels that select a device's rows of a pass, and that copy keys and values from striped caches to windows (all
// positions of one sequence).
#pragma once

#include <cstdint>

#include "kernels/cuda/fabric/ring/places.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/stripes.h"

namespace stoch::cuda {

// Fills `dealt` with the rows of `pass` that the stripe owns.
// Requires: max_rows is at least the number of rows that the stripe owns of any sequence; pages is the number of pages
// of a window.
void LaunchDeal(DeviceContext& ctx, const PassView& pass, int64_t sequences, int64_t max_rows, int64_t pages,
                int32_t page_tokens, const Stripe& stripe, const DealtPass& dealt);

// Consecutive KV heads of pages [first_page, first_page + pages) of one sequence, with the positions of one stripe. In
// a slab, one head follows the other.
struct RingBlock {
  Stripe stripe;  // owner of the positions
  int64_t first_page = 0;
  int64_t pages = 0;
  const int32_t* page_list = nullptr;  // [pages of the sequence] page numbers of the pass, in device memory
  int32_t first_head = 0;
  int32_t heads = 1;
};

// Packs the device's own positions from its cache into a slab: for each head and page the keys, the values, and the
// scales of both.
void LaunchPackBlock(cudaStream_t stream, const KvView& cache, const RingBlock& block, uint8_t* slab);
// Unpacks a slab, whichever stripe it holds, to its positions in a window.
void LaunchUnpackBlock(cudaStream_t stream, const uint8_t* slab, const RingBlock& block, const KvView& window);

}  // namespace stoch::cuda
