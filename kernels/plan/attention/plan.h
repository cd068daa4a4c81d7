// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU: which route every row takes, how the work is cut, with how much shared memory and scratch.
//
// The launch, the memory plan, `stoch inspect` and a table test over GPUs that nobody has to own read the same plan;
// nothing else chooses. Bits: all SC and exact routes give the same, so the choice is invisible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/plan/attention/route.h"
#include "kernels/plan/attention/rows.h"
#include "kernels/plan/attention/shape.h"
#include "kernels/plan/attention/split.h"
#include "kernels/plan/attention/tiles.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch {

enum class AttentionUse : uint8_t {
  kEager,     // one pass
  kRecorded,  // into a graph, which must do for every pass within the limits: its rows are all short ones
  kRing,      // a window of a ring, whose keys and values are in the cache already
};

// A pass, as the host knows it.
struct AttentionPass {
  AttentionUse use = AttentionUse::kEager;
  int64_t rows = 1;
  int64_t max_length = 1;       // of its contexts; a graph recorded for other ones gives the same bits, later
  int64_t batch_sequences = 0;  // sequences with at least kLongSequenceRows rows in a batch of tiles, at most; 0: none
  int64_t short_rows = 1;       // rows of the other sequences
  int64_t max_short_length = 1;
  int64_t output_rows = -1;     // rows whose outputs are wanted; -1: all
  int64_t window = 0;           // AttentionCall::window
  int64_t segment = 0;          // longest segment of dilated attention; 0: dense
  bool has_norm = false;        // heads of q and k are normed before RoPE
  bool has_norm_table = false;  // by a table of 1 / sqrt
  bool observed = false;        // somebody asks for the lengths of rows

  // A pass of short rows only.
  static AttentionPass Rows(int64_t rows, int64_t max_length, AttentionUse use = AttentionUse::kEager);
  // A prompt: rows of one long sequence.
  static AttentionPass Prompt(int64_t rows, int64_t max_length);
};

enum class AttentionNorm : uint8_t {
  kNobody,     // no norm
  kRowKernel,  // the kernel that attends
  kOwnKernel,  // families/heads.cu, before all others
};
// How a pass of one row arrives, and how its output leaves.
enum class AttentionHandover : uint8_t {
  kMemory,  // in memory, at the end of a kernel
  kWords,   // word by word where the kernel before posts it (handover/row_channel.h): this one polls and posts
};
// Rows that are attended, once all of a pass are appended.
enum class AttentionRows : uint8_t { kAll, kOutputs };

// Scores that row kernels keep in memory where a context is too long for shared memory, or cut over many blocks.
struct SpillPlan {
  int64_t stride = 0;        // positions of a row and head; 0: none spills
  int64_t rows_at_once = 0;  // of a launch
  int64_t parts = 0;         // of a row of the split kernels, at most; 0: they do not run
};
SpillPlan PlanSpill(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);

struct AttentionPlan {
  // Route of rows of long sequences, batch by batch (BatchRoute); short_rows where they take no tiles.
  AttentionRoute long_rows = AttentionRoute::kExactRows;
  AttentionRoute short_rows = AttentionRoute::kExactRows;  // of all others
  AttentionNorm norm = AttentionNorm::kNobody;
  AttentionHandover handover = AttentionHandover::kMemory;
  AttentionRows attended = AttentionRows::kAll;
  int64_t count = 0;                // rows that go by short_rows
  int64_t max_length = 0;           // of their contexts
  ScRowPlan row;                    // their first launch, where it is row.cu's or dilated.cu's
  SplitPlan split;                  // their launches, where short_rows cuts contexts
  std::optional<ScTilePlan> tiles;  // where the shape has them: what long_rows, and BatchRoute, may take
  std::optional<WidePlan> wide;
  SpillPlan spill;
  int64_t shared_bytes = 0;   // dynamic shared memory of short_rows' kernel, the largest of several
  int64_t scratch_bytes = 0;  // of both routes for any pass within the limits
};
AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits,
                            const AttentionPass& pass);
// Route of a batch of tiles: wide tiles leave some to others (TakesBatch).
AttentionRoute BatchRoute(const AttentionPlan& plan, int64_t sequences);

// Rows whose queries go to the keys, where positions are dealt over devices.
struct DealtPlan {
  AttentionRoute route = AttentionRoute::kDealtRows;
  SplitPlan split;  // kDealtSplit: how its products are cut, over no more blocks than there are units for
};
// stride: positions of a device that a row sees at most.
DealtPlan PlanDealt(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t stride);

// Routes of `tokens` rows, of one sequence (is_prompt) or of as many in a graph, by context: "rows fresh, split-resident
// beyond 256", for people. segment: AttentionPass::segment. Where positions are dealt, `tokens` are those of all devices.
std::string AttentionRoutes(const GpuTraits& gpu, const AttentionShape& shape, int64_t tokens, bool is_prompt,
                            int64_t segment);
// Those of all layers of a cache, in their order, "; " between those that differ.
std::string AttentionRoutes(const GpuTraits& gpu, const AttentionLayers& layers, int64_t tokens, bool is_prompt,
                            int64_t segment);

// Passes of so few rows append for themselves, and so few output rows go by row kernels, as rows of other lengths do.
inline constexpr int kFreshRows = 8;
inline constexpr int kFewOutputs = 16;

// Positions that kernels plan for which skip what is before a window: whole units of kSplitUnit.
constexpr int64_t WindowReach(int64_t window, int64_t max_length) {
  return window > 0 && window + kSplitUnit < max_length ? window + kSplitUnit : max_length;
}
// Scores that a row of dilated attention has: its longest segment, from a multiple of kRowLanes on.
int64_t DilatedSpan(int64_t segment, int64_t max_length);

// Bytes of the workspace that a route takes at most for any pass within the limits, with its queries.
int64_t RouteScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits,
                          AttentionRoute route);
// Bytes that LaunchAttention takes at most for any pass within the limits: the largest of the routes that it may take.
int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits);
// The most of any layer of a cache whose positions are not dealt.
int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionLayers& layers, const AttentionLimits& limits);
// Rows of kMixedPlain whose scores are in memory at a time.
int64_t MixedRowsAtOnce(const AttentionShape& shape, const AttentionLimits& limits);
// Size of the table of a (row, head) with a length of its own, which mixed.cu checks at compile time.
inline constexpr int64_t kLengthTableBytes = 16;

}  // namespace stoch
