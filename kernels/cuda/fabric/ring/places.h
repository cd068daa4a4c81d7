// SPDX-License-Identifier: Apache-2.0
// Pointers to the parts of the scratch of a device that RingAttention uses (kernels/plan/attention/ring.h has the
// layout).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/plan/attention/ring.h"

namespace stoch::cuda {

// The rows of a pass that one device runs, in device memory; rows of one sequence are contiguous. A window here is the
// keys and values of one sequence at all its positions.
struct DealtPass {
  int32_t* positions = nullptr;     // [rows] absolute positions
  int32_t* row_sequence = nullptr;  // [rows] 0, because a window has one sequence
  PassRow* rows = nullptr;          // [rows] rows of sequence 0
  int32_t* slots = nullptr;         // [rows] places in the striped cache (LaunchAppendCodes)
  // The tiles of sequence s begin at index FirstDealtTile(s, first row), longest context first.
  QueryTile* tiles = nullptr;
  PassSequence* sequences = nullptr;  // [sequences] each as the only sequence of a window
  int32_t* pages = nullptr;           // [pages] pages of a window: 0, 1, 2, ...
};

// Returns pointers into the memory at `share`, where a device keeps its results of an op that sends queries to the
// devices that have the keys (QueryExchange).
QueryShare ShareAt(const ShareLayout& layout, uint8_t* share);

// Finds the parts of a device's scratch for RingAttention. In every function, `scratch` is the address of its first
// byte.
class RingPlaces {
 public:
  // Requires: a spec with stripes that MakeKvCache takes.
  RingPlaces(const KvCacheSpec& spec, int num_heads, const PassLimits& limits)
      : exact_(spec.mode == AttentionMode::kExact), layout_(spec, num_heads, limits) {}
  int64_t total() const { return layout_.end; }

  uint8_t* slab(uint8_t* scratch, int index) const { return scratch + layout_.slabs + index * layout_.slab_bytes; }
  DealtPass dealt(uint8_t* scratch) const;
  // Returns window number `index` as a cache of one layer and `kv_heads` KV heads, in which page p of the sequence is
  // page number p. cache: the device's striped cache, whose shape the window takes.
  KvView window(uint8_t* scratch, int index, const KvView& cache, int kv_heads) const;

  // Scratch for ops that send queries to the devices that have the keys (QueryExchange); absent in kExact. queries:
  // [rows], all rows of the pass. area: number `index` (0 or 1) of the two result areas.
  DealtQuery* queries(uint8_t* scratch) const { return reinterpret_cast<DealtQuery*>(scratch + layout_.queries); }
  uint8_t* area(uint8_t* scratch, int index) const { return scratch + layout_.areas + index * layout_.area_bytes; }
  int64_t area_bytes() const { return layout_.area_bytes; }

 private:
  bool exact_;
  RingLayout layout_;
};

}  // namespace stoch::cuda
