// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU: which route every row takes, how the work is cut, with how much shared memory and scratch.
//
// The launch, the memory plan, `stoch inspect` and CPU tests with the traits of many GPUs read the same plan; nothing
// else chooses. Bits: all SC routes give equal bits, and so do all exact routes, so the choice is invisible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/plan/attention/route.h"
#include "kernels/plan/attention/rows.h"
#include "kernels/plan/attention/shape.h"
#include "kernels/plan/attention/split.h"
#include "kernels/plan/attention/tiles.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/handover.h"

namespace stoch {

enum class AttentionUse : uint8_t {
  kEager,     // a pass that runs at once
  kRecorded,  // a pass recorded into a graph, which must fit every pass within the limits: all its rows count as short
  kRing,      // rows of one sequence over a window of a ring, which has the keys and values already
};

// A pass, as the host knows it.
struct AttentionPass {
  AttentionUse use = AttentionUse::kEager;
  int64_t rows = 1;
  // Longest context; a graph that was recorded for another one gives equal bits, but takes longer.
  int64_t max_length = 1;
  int64_t batch_sequences = 0;  // most sequences of at least kLongSequenceRows rows in one batch of tiles; 0: none
  int64_t short_rows = 1;       // rows of the other sequences
  int64_t max_short_length = 1;
  int64_t output_rows = -1;     // rows whose outputs are wanted; -1: all
  int64_t window = 0;           // AttentionCall::window
  bool dilated = false;         // rows see what pairs admit (AttentionCall::dilated)
  bool has_norm = false;        // heads of q and k are normalized (RMSNorm) before RoPE
  bool has_norm_table = false;  // that norm takes 1 / sqrt from a table
  bool observed = false;        // an observer asks for the stream lengths of rows

  // A pass of short rows only.
  static AttentionPass Rows(int64_t rows, int64_t max_length, AttentionUse use = AttentionUse::kEager);
  // A prompt: rows of one long sequence.
  static AttentionPass Prompt(int64_t rows, int64_t max_length);
};

enum class AttentionNorm : uint8_t {
  kNobody,     // no norm
  kRowKernel,  // the row kernel of attention does it
  kOwnKernel,  // a kernel of families/heads.cu does it, before all others
};
// Rows for which attention is computed after all rows of a pass are appended: all, or those whose outputs are wanted.
enum class AttentionRows : uint8_t { kAll, kOutputs };

// Scores that row kernels keep in device memory if a context is too long for shared memory, or is cut over many blocks.
struct SpillPlan {
  int64_t stride = 0;        // positions of a (row, head); 0: nothing spills
  int64_t rows_at_once = 0;  // rows of a launch
  int64_t parts = 0;         // most units (kSplitUnit) of a row in the split kernels; 0: these do not run
};
SpillPlan PlanSpill(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);

struct AttentionPlan {
  // Route of the rows of long sequences (BatchRoute: of one batch); short_rows if they take no tiles.
  AttentionRoute long_rows = AttentionRoute::kExactRows;
  AttentionRoute short_rows = AttentionRoute::kExactRows;  // route of all other rows
  AttentionNorm norm = AttentionNorm::kNobody;
  Handover handover = Handover::kMemory;  // how q, k and v arrive and the output leaves
  AttentionRows attended = AttentionRows::kAll;
  int64_t count = 0;                // rows that take short_rows
  int64_t max_length = 0;           // longest context of these rows
  ScRowPlan row;                    // first launch of these rows, if its kernel is in row.cu
  SplitPlan split;                  // launches of these rows, if short_rows cuts contexts
  std::optional<ScTilePlan> tiles;  // plans of tiles and of wide tiles; nullopt if the shape cannot take them
  std::optional<WidePlan> wide;
  SpillPlan spill;
  int64_t shared_bytes = 0;   // most dynamic shared memory of the kernels of short_rows
  int64_t scratch_bytes = 0;  // workspace that either route needs for any pass within the limits
};
AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits,
                            const AttentionPass& pass);
// Route of a batch of tiles with `sequences` sequences: long_rows, or kScTiles if wide tiles do not take the batch
// (TakesBatch).
AttentionRoute BatchRoute(const AttentionPlan& plan, int64_t sequences);

// The plan of rows whose queries go to the devices that have the keys, if positions are dealt over devices.
struct DealtPlan {
  AttentionRoute route = AttentionRoute::kDealtRows;
  SplitPlan split;  // kDealtSplit: how the products are cut, over at most as many blocks as there are units
};
// stride: most positions of one device that a row sees.
DealtPlan PlanDealt(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t stride);

// Names for users the routes by context, as "rows fresh, split-resident beyond 256", of `tokens` rows: of one sequence
// (is_prompt), or of as many sequences in a graph. If positions are dealt, `tokens` counts the rows of all devices.
std::string AttentionRoutes(const GpuTraits& gpu, const AttentionShape& shape, int64_t tokens, bool is_prompt,
                            int64_t window = 0);
// The names for all layers of a cache, in the order of layers, each once, with "; " in between. windows: of each layer
// of the model; empty: no layer has one.
std::string AttentionRoutes(const GpuTraits& gpu, const AttentionLayers& layers, int64_t tokens, bool is_prompt,
                            std::span<const int64_t> windows);

// kFreshRows: most rows of a pass whose row kernel also appends them. kFewOutputs: most output rows of a pass that
// computes attention for its output rows only.
inline constexpr int kFreshRows = 8;
inline constexpr int kFewOutputs = 16;

// Positions to plan for in kernels that skip the units (kSplitUnit positions) before a sliding window.
constexpr int64_t WindowReach(int64_t window, int64_t max_length) {
  return window > 0 && window + kSplitUnit < max_length ? window + kSplitUnit : max_length;
}

// Most bytes of the workspace that a route takes for any pass within the limits, with the codes of its queries.
int64_t RouteScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits,
                          AttentionRoute route);
// Most bytes of the workspace that LaunchAttention takes for any pass within the limits, over all routes that it may
// take.
int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);
// The largest AttentionScratchBytes of the layers of a cache whose positions are not dealt.
int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionLayers& layers, const AttentionLimits& limits);
// Most rows of kPlainRows whose scores are in memory at a time.
int64_t MixedRowsAtOnce(const AttentionShape& shape, const AttentionLimits& limits);
// Bytes of a ByteTable, the view of a count table that each (row, head) with its own length has; mixed.cu checks the
// size at compile time.
inline constexpr int64_t kLengthTableBytes = 16;

}  // namespace stoch
