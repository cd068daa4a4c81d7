// SPDX-License-Identifier: Apache-2.0
// Pointers to what RingAttention works on in the scratch of a device (kernels/plan/attention/ring.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/plan/attention/ring.h"

namespace stoch::cuda {

// The rows of a pass that one device runs; device memory, rows of a sequence together.
struct DealtPass {
  int32_t* positions = nullptr;       // [rows] absolute
  int32_t* row_sequence = nullptr;    // [rows]: 0, a window has one sequence
  PassRow* rows = nullptr;            // [rows], of sequence 0
  int32_t* slots = nullptr;           // [rows] in the striped cache, as LaunchAppendCodes wants them
  QueryTile* tiles = nullptr;         // of sequence s from DealtTiles(s, first row) on: longest context first
  PassSequence* sequences = nullptr;  // [sequences] as the only one of a window
  int32_t* pages = nullptr;           // of a window: 0, 1, 2, ...
};

// A device's share of an op by queries, which begins at `share`.
QueryShare ShareAt(const ShareLayout& layout, uint8_t* share);

// Parts of a device's scratch.
class RingPlaces {
 public:
  // Requires: a spec with stripes that MakeKvCache takes.
  RingPlaces(const KvCacheSpec& spec, int num_heads, const PassLimits& limits)
      : exact_(spec.mode == AttentionMode::kExact), layout_(spec, num_heads, limits) {}
  int64_t total() const { return layout_.end; }

  uint8_t* slab(uint8_t* scratch, int index) const { return scratch + layout_.slabs + index * layout_.slab_bytes; }
  DealtPass dealt(uint8_t* scratch) const;
  // A window as a cache of one layer and some KV heads whose pages are those of a sequence in order. `cache`: whose
  // window.
  KvView window(uint8_t* scratch, int index, const KvView& cache, int kv_heads) const;

  // ---- Of rows whose queries go to the keys; there is none of it in kExact.
  DealtQuery* queries(uint8_t* scratch) const { return reinterpret_cast<DealtQuery*>(scratch + layout_.queries); }
  uint8_t* area(uint8_t* scratch, int index) const { return scratch + layout_.areas + index * layout_.area_bytes; }
  int64_t area_bytes() const { return layout_.area_bytes; }

 private:
  bool exact_;
  RingLayout layout_;
};

}  // namespace stoch::cuda
