// SPDX-License-Identifier: Apache-2.0
// Dealing a pass on its device, and the way of keys and values from striped caches to windows.
#pragma once

#include <cstdint>

#include "kernels/cuda/fabric/ring/places.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/stripes.h"

namespace stoch::cuda {

// Fills `dealt` with the rows of `pass` that the stripe owns.
// Requires: max_rows bounds the dealt rows of a sequence; pages those of a window.
void LaunchDeal(DeviceContext& ctx, const PassView& pass, int64_t sequences, int64_t max_rows, int64_t pages,
                int32_t page_tokens, const Stripe& stripe, const DealtPass& dealt);

// Consecutive KV heads of the pages [first_page, first_page + pages) of one sequence of a pass. In a slab one head
// follows the other.
struct RingBlock {
  Stripe stripe;  // whose positions
  int64_t first_page = 0;
  int64_t pages = 0;
  const int32_t* page_list = nullptr;  // the sequence's pages, on the device
  int32_t first_head = 0;
  int32_t heads = 1;
};

// The device's own positions, from its cache to a slab: head by head and page by page k, v, and their scales.
void LaunchPackBlock(cudaStream_t stream, const KvView& cache, const RingBlock& block, uint8_t* slab);
// From a slab of any stripe to where they are in a window.
void LaunchUnpackBlock(cudaStream_t stream, const uint8_t* slab, const RingBlock& block, const KvView& window);

}  // namespace stoch::cuda
