// SPDX-License-Identifier: Apache-2.0
// Keys and values of one KV head of a sequence on their way from the striped cache of one device to a window that the
// ordinary kernels read.
#pragma once

#include <cstdint>

#include "kernels/cpu/kv_cache.h"
#include "kernels/stripes.h"

namespace stoch::cpu {

// Pages [begin, end) of one sequence, and where they come from.
struct RingSource {
  const PassLayout::Sequence* sequence = nullptr;
  int layer = 0;  // layer of the cache
  int64_t kv_head = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Bytes of one page's positions of one stripe, as Pack writes them: k then v then their scales, in the cache's layouts.
int64_t RingPageBytes(const KvCacheSpec& spec);

// Copies what `cache` has of the pages to `slab`. Returns: the bytes.
int64_t PackStripe(const CpuKvCache& cache, const RingSource& source, uint8_t* slab);

// Puts what Pack wrote of `stripe` into pages [begin, end) of `window`, page i being the i-th of the sequence.
void UnpackStripe(const uint8_t* slab, const RingSource& source, const Stripe& stripe, const CpuKvCache& window);

}  // namespace stoch::cpu
