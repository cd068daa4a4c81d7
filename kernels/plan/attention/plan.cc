// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/attention/plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/context_bucket.h"
#include "kernels/math/reduce.h"
#include "kernels/plan/attention/ring.h"
#include "kernels/plan/divide_up.h"

namespace stoch {
namespace {

constexpr int64_t kMaxSpillFloats = int64_t{64} << 20;

// Whether it pays to cut the contexts of `rows` rows over the GPU. Measured with the 32 heads of an 8B model on an
// H200: one kernel of resident blocks beats the row kernel from a few hundred positions on (kShortContext); several
// kernels cost more to launch and pay only beyond kLongContext positions.
bool IsSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  const SplitKernel kernel = PlanSplit(gpu, shape, rows, max_length).kernel;
  if (kernel == SplitKernel::kNone) return false;
  if (gpu.split_from > 0) return max_length >= gpu.split_from;
  return max_length > (IsResident(kernel) ? kShortContext : kLongContext);
}

// Whether a pass of `rows` rows takes the row kernel that also appends the rows (kScFreshRows).
bool IsFresh(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length) {
  return rows <= kFreshRows && shape.mode == AttentionMode::kPerToken && !IsSplit(gpu, shape, rows, max_length);
}

AttentionRoute SplitRoute(SplitKernel kernel) {
  switch (kernel) {
    case SplitKernel::kLookup:
    case SplitKernel::kLookupWords: return AttentionRoute::kScLookup;
    case SplitKernel::kResident: return AttentionRoute::kScResident;
    case SplitKernel::kParts:
    case SplitKernel::kNone: break;
  }
  return AttentionRoute::kScSplit;
}

// Whether a pass computes attention for its output rows only, after all rows are appended.
bool TakesOutputs(const AttentionPass& pass) {
  return pass.output_rows >= 0 && pass.output_rows <= kFewOutputs && pass.use == AttentionUse::kEager;
}

AttentionRoute MixedRoute(const AttentionShape& shape, const AttentionPass& pass) {
  if (shape.mode == AttentionMode::kExact) return AttentionRoute::kExactRows;
  if (shape.mode != AttentionMode::kPerToken) return AttentionRoute::kPlainWindow;
  const bool is_ring = pass.use == AttentionUse::kRing;
  if (is_ring || shape.lengths == AttentionLengths::kAny) return AttentionRoute::kPlainRows;
  // kMixedFresh takes one row only: with eight rows, a kernel that appends first is faster (docs/tuning/attention.md).
  // An observer needs the lengths of the queries in memory, which only kMixedRows stores.
  return pass.rows == 1 && !pass.observed ? AttentionRoute::kMixedFresh : AttentionRoute::kMixedRows;
}

// Route of single rows with one stream length, without dilation.
AttentionRoute ScRoute(const GpuTraits& gpu, const AttentionShape& shape, const AttentionPass& pass) {
  const bool appended = pass.use == AttentionUse::kRing;
  if (!appended && IsFresh(gpu, shape, pass.rows, pass.max_length)) return AttentionRoute::kScFreshRows;
  int64_t rows = pass.rows;
  if (TakesOutputs(pass)) {
    // All rows are appended first. If a pass of the output rows alone would take kScFreshRows, which appends its rows
    // again, the route is chosen for the number of all rows.
    const int64_t few = std::max<int64_t>(1, pass.output_rows);
    if (!IsFresh(gpu, shape, few, pass.max_length)) rows = few;
  }
  if (IsSplit(gpu, shape, rows, pass.max_length)) return AttentionRoute::kScSplit;
  return shape.mode == AttentionMode::kPerToken ? AttentionRoute::kScRows : AttentionRoute::kScWindowRows;
}

AttentionRoute ShortRoute(const GpuTraits& gpu, const AttentionShape& shape, const AttentionPass& pass) {
  if (pass.dilated) return AttentionRoute::kPlainRows;
  if (shape.lengths != AttentionLengths::kUniform) return MixedRoute(shape, pass);
  if (shape.mode != AttentionMode::kExact) return ScRoute(gpu, shape, pass);
  const int64_t rows = TakesOutputs(pass) ? std::max<int64_t>(1, pass.output_rows) : pass.rows;
  return IsSplit(gpu, shape, rows, pass.max_length) ? AttentionRoute::kExactSplit : AttentionRoute::kExactRows;
}

// Route of long sequences; `otherwise` if they take no tiles.
AttentionRoute LongRoute(const AttentionShape& shape, const AttentionPass& pass, const AttentionPlan& plan,
                         AttentionRoute otherwise) {
  if (pass.batch_sequences == 0 || plan.attended == AttentionRows::kOutputs) return otherwise;
  if (otherwise == AttentionRoute::kPlainRows) return otherwise;
  switch (shape.lengths) {
    case AttentionLengths::kUniform: break;
    case AttentionLengths::kByTile:  // wide tiles for all batches or for none
      return plan.wide && TakesBatch(*plan.wide, pass.batch_sequences) ? AttentionRoute::kMixedWide : otherwise;
    case AttentionLengths::kByRow:
    case AttentionLengths::kAny: return otherwise;
  }
  if (shape.precision == Precision::kFp16) {
    return shape.head_dim == 64 || shape.head_dim == 128 ? AttentionRoute::kHalfTiles : otherwise;
  }
  if (shape.mode == AttentionMode::kExact) return otherwise;
  // Tiles over dealt positions do not skip the positions before a sliding window.
  if (pass.use == AttentionUse::kRing && pass.window > 0 && pass.window < pass.max_length) return otherwise;
  if (plan.wide) return AttentionRoute::kScWide;
  return plan.tiles ? AttentionRoute::kScTiles : otherwise;
}

AttentionNorm NormOf(const AttentionShape& shape, const AttentionPass& pass, AttentionRoute route) {
  constexpr int kHeadStep = 64;  // NormHead takes multiples of this head_dim
  if (!pass.has_norm) return AttentionNorm::kNobody;
  const bool is_fused = route == AttentionRoute::kScFreshRows && !pass.has_norm_table;
  return is_fused && shape.head_dim % kHeadStep == 0 ? AttentionNorm::kRowKernel : AttentionNorm::kOwnKernel;
}

// Words are handed over only in a pass of one row. If its output is not wanted (count 0), a separate kernel appends the
// row; if a separate kernel normalizes the heads, they are in memory.
Handover HandoverOf(const AttentionPass& pass, const AttentionPlan& plan) {
  if (pass.rows != 1 || plan.count == 0 || plan.norm == AttentionNorm::kOwnKernel || pass.use == AttentionUse::kRing) {
    return Handover::kMemory;
  }
  if (plan.short_rows == AttentionRoute::kScFreshRows) return Handover::kWords;
  return IsResident(plan.split.kernel) ? Handover::kWords : Handover::kMemory;
}

// Sets how the short rows are cut, and the shared memory of their kernels.
void CutRows(const GpuTraits& gpu, const AttentionShape& shape, const AttentionPass& pass, AttentionPlan& plan) {
  const int64_t rows = std::clamp<int64_t>(plan.count, 1, plan.spill.rows_at_once);
  const int64_t length = plan.max_length;
  if (CutsContexts(plan.short_rows)) {
    plan.split = PlanSplit(gpu, shape, rows, WindowReach(pass.window, length));
    if (plan.short_rows == AttentionRoute::kScSplit) plan.short_rows = SplitRoute(plan.split.kernel);
    plan.shared_bytes = IsResident(plan.split.kernel)
                            ? plan.split.shared_bytes
                            : std::max(plan.split.score_shared_bytes, plan.split.value_shared_bytes);
  } else if (IsScRowKernel(plan.short_rows)) {
    plan.row = PlanScRows(gpu, shape, rows, length);
    plan.shared_bytes = plan.row.shared_bytes;
  }
}

}  // namespace

AttentionPass AttentionPass::Rows(int64_t rows, int64_t max_length, AttentionUse use) {
  AttentionPass pass;
  pass.use = use;
  pass.rows = pass.short_rows = rows;
  pass.max_length = pass.max_short_length = max_length;
  return pass;
}

AttentionPass AttentionPass::Prompt(int64_t rows, int64_t max_length) {
  AttentionPass pass = Rows(rows, max_length);
  if (rows < kLongSequenceRows) return pass;
  pass.batch_sequences = 1;
  pass.short_rows = pass.max_short_length = 0;
  return pass;
}

AttentionPlan PlanAttention(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits,
                            const AttentionPass& pass) {
  AttentionPlan plan;
  const bool may_take_outputs = TakesOutputs(pass) && shape.lengths == AttentionLengths::kUniform && !pass.dilated;
  plan.spill = PlanSpill(gpu, shape, limits);
  plan.short_rows = ShortRoute(gpu, shape, pass);
  if (may_take_outputs && !AppendsItself(plan.short_rows)) plan.attended = AttentionRows::kOutputs;
  if (shape.lengths == AttentionLengths::kByTile) {
    plan.wide = PlanWideTiles(gpu, LongestShape(shape));
  } else if (shape.mode != AttentionMode::kExact) {
    plan.tiles = PlanScTiles(gpu, shape);
    plan.wide = PlanWideTiles(gpu, shape);
  }
  plan.long_rows = LongRoute(shape, pass, plan, plan.short_rows);
  const bool has_tiles = plan.long_rows != plan.short_rows;
  plan.count = plan.attended == AttentionRows::kOutputs ? pass.output_rows : has_tiles ? pass.short_rows : pass.rows;
  plan.max_length = has_tiles ? pass.max_short_length : pass.max_length;
  CutRows(gpu, shape, pass, plan);
  if (!has_tiles) plan.long_rows = plan.short_rows;
  plan.norm = NormOf(shape, pass, plan.short_rows);
  plan.handover = HandoverOf(pass, plan);
  plan.scratch_bytes = std::max(RouteScratchBytes(gpu, shape, limits, plan.short_rows),
                                RouteScratchBytes(gpu, shape, limits, plan.long_rows));
  return plan;
}

AttentionRoute BatchRoute(const AttentionPlan& plan, int64_t sequences) {
  const bool leaves = plan.long_rows == AttentionRoute::kScWide && !TakesBatch(*plan.wide, sequences);
  return leaves ? AttentionRoute::kScTiles : plan.long_rows;
}

std::string AttentionRoutes(const GpuTraits& gpu, const AttentionShape& shape, int64_t tokens, bool is_prompt,
                            int64_t window) {
  constexpr int64_t kLongest = 4 * kFarContext;
  const bool is_dealt = shape.stripes > 1;
  const auto route = [&](int64_t from) {
    // A graph is recorded for the longest context of its bucket.
    const int64_t length = is_prompt || is_dealt ? from : LongestOfBucket(ContextBucket(from), kLongest);
    if (is_dealt && !is_prompt && HasQueryRoute(shape)) {
      return PlanDealt(gpu, shape, tokens, DivideUp(length, shape.stripes)).route;
    }
    const int64_t rows = DivideUp(tokens, shape.stripes);
    AttentionPass pass = is_prompt ? AttentionPass::Prompt(rows, length) : AttentionPass::Rows(rows, length);
    if (is_dealt) {
      pass.use = AttentionUse::kRing;
    } else if (!is_prompt) {
      pass.use = AttentionUse::kRecorded;
    }
    pass.window = window;
    pass.dilated = shape.dilated;
    return PlanAttention(gpu, shape, {rows, is_prompt ? 1 : rows, length}, pass).long_rows;
  };
  AttentionRoute last = route(kShortContext);
  std::string names(AttentionRouteName(last));
  std::vector<int64_t> bounds = {kShortContext, kMiddleContext, kLongContext, kDeepContext, kFarContext};
  // A prompt over dealt positions changes its route where contexts get longer than the window (LongRoute).
  if (window > kShortContext) bounds.insert(std::upper_bound(bounds.begin(), bounds.end(), window), window);
  for (const int64_t from : bounds) {
    const AttentionRoute next = route(from + 1);
    if (next != last) names += ", " + std::string(AttentionRouteName(next)) + " beyond " + std::to_string(from);
    last = next;
  }
  return names;
}

std::string AttentionRoutes(const GpuTraits& gpu, const AttentionLayers& layers, int64_t tokens, bool is_prompt,
                            std::span<const int64_t> windows) {
  std::vector<std::string> each;
  for (size_t layer = 0; layer < std::max(layers.of_layer.size(), windows.size()); ++layer) {
    const int64_t window = windows.empty() ? 0 : windows[layer];
    std::string routes = AttentionRoutes(gpu, layers.at(static_cast<int>(layer)), tokens, is_prompt, window);
    if (std::find(each.begin(), each.end(), routes) == each.end()) each.push_back(std::move(routes));
  }
  std::string all = each.front();
  for (size_t i = 1; i < each.size(); ++i) all += "; " + each[i];
  return all;
}

DealtPlan PlanDealt(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t stride) {
  DealtPlan plan;
  plan.split = PlanSplitParts(gpu, shape, stride);
  if (plan.split.kernel != SplitKernel::kNone) plan.route = AttentionRoute::kDealtSplit;
  const int64_t units = rows * shape.num_kv_heads * plan.split.head_blocks * (stride / kSplitUnit + 2);
  plan.split.score_blocks = static_cast<int>(std::min<int64_t>(plan.split.score_blocks, units));
  plan.split.value_blocks = static_cast<int>(std::min<int64_t>(plan.split.value_blocks, units));
  return plan;
}

SpillPlan PlanSpill(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  SpillPlan plan;
  plan.rows_at_once = 32768;  // gridDim is limited to 65535
  // The context of a single row may be cut even if those of many rows are not.
  const bool split =
      IsSplit(gpu, shape, 1, limits.max_context) || IsSplit(gpu, shape, limits.max_rows, limits.max_context);
  if (!split && limits.max_context <= kMaxSharedScores) return plan;
  plan.stride = DivideUp(limits.max_context, kSplitUnit) * kSplitUnit;
  // A decode step has one row per sequence. The short rows of a prompt may be more; they take several launches.
  const int64_t most =
      split ? std::min(limits.max_rows, std::max<int64_t>(limits.max_sequences, kLongSequenceRows)) : limits.max_rows;
  plan.rows_at_once = std::clamp<int64_t>(kMaxSpillFloats / (plan.stride * shape.num_heads), 1, most);
  if (split) plan.parts = plan.stride / kSplitUnit;
  return plan;
}

}  // namespace stoch
