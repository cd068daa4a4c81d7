// SPDX-License-Identifier: Apache-2.0
// RingAttention on GPUs: how much of a sequence travels at a time, and where a device's scratch has what.
//
// The exchange, the plan of memory and a test over GPUs that nobody has to own ask the same functions.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/plan/attention/plan.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/scratch_layout.h"
#include "kernels/ring.h"

namespace stoch {

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

inline constexpr int kQueryAreas = 2;            // QueryExchange::area
inline constexpr int64_t kQueryRowsAtOnce = 64;  // whose queries go to the keys together, at most

// Where a device's share of an op by queries has what, in bytes from its start. Those that others add to come first, so
// that one call clears them.
struct ShareLayout {
  ShareLayout(const KvCacheSpec& spec, int num_heads, int64_t rows, int64_t own_rows);
  int64_t score_max = 0, weight_max = 0, sums = 0, cleared_end = 0;
  int64_t lanes = 0, words = 0, scales = 0, end = 0;
};

// Where RingAttention's scratch has what, in bytes from its start.
struct RingLayout {
  // Requires: a spec with stripes that MakeKvCache takes.
  RingLayout(const KvCacheSpec& spec, int num_heads, const PassLimits& limits);

  int64_t keys = 0, values = 0, key_scales = 0, value_scales = 0;  // of window 0
  int64_t window_bytes = 0;
  int64_t slabs = 0, slab_bytes = 0;
  // Rows that the device runs.
  int64_t positions = 0, row_sequence = 0, rows = 0, slots = 0, tiles = 0, sequences = 0, pages = 0;
  // Rows whose queries go to the keys; not in kExact.
  int64_t queries = 0, areas = 0, area_bytes = 0;
  int64_t end = 0;

 private:
  int64_t Take(int64_t bytes) {
    const int64_t at = end;
    end += ScratchLayout::Aligned(bytes);
    return at;
  }
};
// Where the tiles of sequence `sequence`, whose first dealt row is `first_row`, begin.
constexpr int64_t FirstDealtTile(int64_t sequence, int64_t first_row) { return first_row / kQueryTile + sequence; }

// Whether queries may go to the keys of such a cache.
bool HasQueryRoute(const KvCacheSpec& spec);
// How keys and queries of a call meet, kRing or kQuery. most_rows: of a sequence. Requires: HasQueryRoute where kQuery is
// asked for.
RingRoute PlanRingRoute(const KvCacheSpec& spec, RingRoute asked, int64_t most_rows);

// Scores of rows whose queries go to the keys, which wait in the workspace: bytes of it; 0 in kExact.
int64_t QueryScoreBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits);
// Rows whose scores there is room for, where a row of a head takes `stride` floats.
int64_t QueryScoreRows(const KvCacheSpec& spec, int num_heads, const PassLimits& limits, int64_t stride);

// Bytes of the workspace of one device that RingAttention takes at most. limits.max_rows: of rows that the device owns.
int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits);
// Limits of its passes, with so many KV heads of a sequence at a time.
AttentionLimits RingAttentionLimits(const KvCacheSpec& spec, const PassLimits& limits, int heads);

// ---- Sizes of what kernels/cuda has there, which checks them where it is compiled.
inline constexpr int64_t kPassRowBytes = 16;
inline constexpr int64_t kQueryTileBytes = 24;
inline constexpr int64_t kPassSequenceBytes = 28;
inline constexpr int64_t kDealtQueryBytes = 16;

}  // namespace stoch
