// SPDX-License-Identifier: Apache-2.0
// RingAttention on GPUs: how much of a sequence travels at a time, and how a device's scratch is laid out.
//
// The exchange, the memory plan and CPU tests call the same functions.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/plan/attention/plan.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/scratch_layout.h"
#include "kernels/ring.h"

namespace stoch {

inline constexpr int kRingWindows = 2;  // one is filled while attention reads the other
inline constexpr int kRingSlabs = 2;

// A window holds as many KV heads at a time as it has room for: one KV head of the longest context, or several of
// shorter contexts with at most kRingPositions positions in all (a quarter of that in exact attention, whose numbers
// have four bytes). So there are few rounds, and grids fill the GPU.
inline constexpr int64_t kRingPositions = 65536;

// Pages that a window, and a slab, has room for, over all its KV heads.
int64_t RingPages(const KvCacheSpec& spec, const PassLimits& limits);
// KV heads of a round for a sequence of `pages` pages; divides spec.num_kv_heads.
int RingHeads(const KvCacheSpec& spec, const PassLimits& limits, int64_t pages);

// 32-bit words in a slab of one page's positions of one stripe and KV head: keys, values, and the scales of both.
int64_t RingPageWords(const KvCacheSpec& spec);

inline constexpr int kQueryAreas = 2;            // QueryExchange::area
inline constexpr int64_t kQueryRowsAtOnce = 64;  // most rows whose queries go to the keys together

// Offsets in bytes in a device's share (QueryShare), its results of an op that sends queries to the keys. The arrays
// that kernels accumulate by atomics come first, up to cleared_end, so that one memset clears them.
struct ShareLayout {
  ShareLayout(const KvCacheSpec& spec, int num_heads, int64_t rows, int64_t own_rows);
  int64_t score_max = 0, weight_max = 0, sums = 0, cleared_end = 0;
  int64_t lanes = 0, words = 0, scales = 0, end = 0;
};

// Offsets in bytes in a device's scratch of RingAttention.
struct RingLayout {
  // Requires: a spec with stripes that MakeKvCache takes.
  RingLayout(const KvCacheSpec& spec, int num_heads, const PassLimits& limits);

  int64_t keys = 0, values = 0, key_scales = 0, value_scales = 0;  // offsets of window 0's arrays
  int64_t window_bytes = 0;
  int64_t slabs = 0, slab_bytes = 0;
  // Arrays of the rows that the device runs (DealtPass).
  int64_t positions = 0, row_sequence = 0, rows = 0, slots = 0, tiles = 0, sequences = 0, pages = 0;
  // Arrays of rows whose queries go to the keys; absent in kExact.
  int64_t queries = 0, areas = 0, area_bytes = 0;
  int64_t end = 0;

 private:
  int64_t Take(int64_t bytes) {
    const int64_t at = end;
    end += ScratchLayout::Aligned(bytes);
    return at;
  }
};
// Index of the first tile of sequence `sequence`, whose first dealt row is `first_row`.
constexpr int64_t FirstDealtTile(int64_t sequence, int64_t first_row) { return first_row / kQueryTile + sequence; }

// Whether queries may go to the devices that have the keys. Without this route keys and values travel for a single row,
// too.
constexpr bool HasQueryRoute(const AttentionShape& shape) {
  return shape.mode == AttentionMode::kPerToken && shape.lengths == AttentionLengths::kUniform;
}
// The route of a call, kRing or kQuery. most_rows: most rows of a sequence of the pass. Requires: HasQueryRoute(shape)
// if kQuery is asked for.
RingRoute PlanRingRoute(const AttentionShape& shape, RingRoute asked, int64_t most_rows);

// Bytes of the workspace for the scores of rows whose queries go to the keys; 0 in kExact.
int64_t QueryScoreBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits);
// Rows whose scores fit QueryScoreBytes if a (row, head) takes `stride` floats; at most kQueryRowsAtOnce.
int64_t QueryScoreRows(const KvCacheSpec& spec, int num_heads, const PassLimits& limits, int64_t stride);

// Most bytes of the workspace of one device that RingAttention takes. limits.max_rows: most rows that the device owns.
int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits);
// Limits of the passes of RingAttention with `heads` KV heads of a sequence at a time.
AttentionLimits RingAttentionLimits(const KvCacheSpec& spec, const PassLimits& limits, int heads);

// ---- Sizes of types of kernels/cuda, which checks them at compile time.
inline constexpr int64_t kPassRowBytes = 16;
inline constexpr int64_t kQueryTileBytes = 24;
inline constexpr int64_t kPassSequenceBytes = 28;
inline constexpr int64_t kDealtQueryBytes = 16;

}  // namespace stoch
