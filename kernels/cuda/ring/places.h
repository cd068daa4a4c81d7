// SPDX-License-Identifier: Apache-2.0
// Where the scratch of a device has what RingAttention works on.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/pass.h"

namespace stoch::cuda {

inline constexpr int kRingWindows = 2;  // one is filled while the other is computed with
inline constexpr int kRingSlabs = 2;

// A window has as many KV heads at a time as it has room for: one of the longest context, or more of shorter ones, up to
// so many positions in all (exact attention, of four bytes a number: a quarter). Few rounds, and grids that fill the GPU.
inline constexpr int64_t kRingPositions = 65536;

// Pages of a window and of a slab, all its KV heads together.
int64_t RingPages(const KvCacheSpec& spec, const PassLimits& limits);
// KV heads of a round, for a sequence of so many pages: divides spec.num_kv_heads.
int RingHeads(const KvCacheSpec& spec, const PassLimits& limits, int64_t pages);

// 32-bit words of one page's positions of one stripe and KV head on their way: keys, values, and their scales.
int64_t RingPageWords(const KvCacheSpec& spec);

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
// Where the tiles of sequence `sequence`, whose first dealt row is `first_row`, begin.
constexpr int64_t FirstDealtTile(int64_t sequence, int64_t first_row) { return first_row / kQueryTile + sequence; }

inline constexpr int kQueryAreas = 2;            // QueryExchange::area
inline constexpr int64_t kQueryRowsAtOnce = 64;  // whose queries go to the keys together, at most

// Where a device's share of an op by queries has what, in bytes from its start. Those that others add to come first, so
// that one call clears them.
struct ShareLayout {
  ShareLayout(const KvCacheSpec& spec, int num_heads, int64_t rows, int64_t own_rows);
  // The share that begins at `share`.
  QueryShare At(uint8_t* share) const;

  int64_t score_max = 0, weight_max = 0, sums = 0, cleared_end = 0;
  int64_t lanes = 0, words = 0, scales = 0, end = 0;
};

// Parts of a scratch, in bytes from its start.
class RingPlaces {
 public:
  // Requires: a spec with stripes that MakeKvCache takes.
  RingPlaces(const KvCacheSpec& spec, int num_heads, const PassLimits& limits);
  int64_t total() const { return end_; }

  uint8_t* slab(uint8_t* scratch, int index) const { return scratch + slabs_ + index * slab_bytes_; }
  int64_t slab_bytes() const { return slab_bytes_; }
  DealtPass dealt(uint8_t* scratch) const;
  // A window as a cache of one layer and some KV heads whose pages are those of a sequence in order. `cache`: whose
  // window.
  KvView window(uint8_t* scratch, int index, const KvView& cache, int kv_heads) const;

  // ---- Of rows whose queries go to the keys; there is none of it in kExact.
  DealtQuery* queries(uint8_t* scratch) const { return reinterpret_cast<DealtQuery*>(scratch + queries_); }
  uint8_t* area(uint8_t* scratch, int index) const { return scratch + areas_ + index * area_bytes_; }
  int64_t area_bytes() const { return area_bytes_; }
  float* scores(uint8_t* scratch) const { return reinterpret_cast<float*>(scratch + scores_); }
  // Rows whose scores there is room for, where a row of a head takes `stride` floats.
  int64_t QueryRows(int64_t stride) const;

 private:
  int64_t Take(int64_t bytes);

  bool exact_;
  int64_t end_ = 0;
  int64_t keys_ = 0, values_ = 0, key_scales_ = 0, value_scales_ = 0;  // of window 0
  int64_t window_bytes_ = 0;
  int64_t slabs_ = 0, slab_bytes_ = 0;
  int64_t positions_ = 0, row_sequence_ = 0, rows_ = 0, slots_ = 0, tiles_ = 0, sequences_ = 0, pages_ = 0;
  int num_heads_;
  int64_t queries_ = 0, areas_ = 0, area_bytes_ = 0, scores_ = 0, scores_bytes_ = 0;
};

}  // namespace stoch::cuda
