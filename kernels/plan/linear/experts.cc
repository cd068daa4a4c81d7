// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/experts.h"

#include <algorithm>

#include "kernels/math/reduce.h"
#include "kernels/plan/divide_up.h"
#include "kernels/plan/linear/decode_blocks.h"
#include "kernels/plan/linear/mixed.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/plan/plain_reason.h"
#include "kernels/plan/scratch_layout.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kWarps = 16;         // warps of a block of kExpertLookup
constexpr int64_t kMaxTasks = 1024;    // most (slot, matrix) pairs of a block
constexpr int64_t kMaxPlaces = 512;    // most (matrix, expert) pairs whose places a block stages, one per thread
constexpr int64_t kMaxExperts = 4096;  // most experts whose slots one block counts
constexpr int64_t kGroupedRows = 16;   // least rows of x for tiles; with fewer, tiles would be almost empty
constexpr int64_t kFewestProductBytes = int64_t{16} << 20;
constexpr int64_t kMostProductBytes = int64_t{64} << 20;
constexpr int64_t kFewestTiles = 32;
constexpr int64_t kMostStreamBytes = int64_t{512} << 20;
constexpr int64_t kListBytes = int64_t{1} << 20;  // bytes of the list of slots by expert

// With kExpertLookup each slot looks up its expert's weights on its own. A tile of 64 slots takes about as long as six
// of these slots (docs/tuning/experts.md).
constexpr int64_t kGroupedSlots = 6;  // average slots of an expert from which on tiles are faster

int64_t RowBlocks(const ExpertShape& shape) {
  return shape.row_slots * shape.matrices * DivideUp(shape.out_features, kTileRows);
}

int64_t ProductBytes(int64_t in_features, int64_t rows) {
  return std::clamp(rows * in_features * 512, kFewestProductBytes, kMostProductBytes);
}

// Bytes of the streams and scales of one tile of slots.
int64_t TileBytes(const ScTraits& sc, int64_t in_features) {
  const StreamShape one =
      MakeStreamShape(MakeScDims(in_features, sc.chunk_d), kPrefillTileTokens, kPrefillTileTokens, sc.stoc_len);
  return one.bytes() + one.scale_count() * kFloat;
}

// Bytes of the streams of the tiles that are in memory together.
int64_t StreamBytes(const ScTraits& sc, int64_t in_features, int64_t rows) {
  constexpr int64_t kSlots = 8;  // assumed slots of a row
  const int64_t tile = TileBytes(sc, in_features);
  const int64_t most = std::max(kMostStreamBytes / tile, int64_t{1}) * tile;
  return std::min(std::max(kFewestTiles * tile, rows * kSlots * DivideUp(tile, kPrefillTileTokens)), most);
}

bool CanLookUp(const ScTraits& sc, const ScDims& dims, const ExpertShape& shape) {
  return sc.code == ScCode::kSignMagnitude && sc.has_bytes && dims.chunk_d <= kDecodeChunkDims &&
         shape.row_slots * shape.matrices * 4 <= kMaxTasks;
}

bool CanGroup(const GpuTraits& gpu, const ScTraits& sc, const ExpertShape& shape) {
  return CanPrefillWgmma(gpu, sc) && (sc.stoc_len == 128 || sc.stoc_len == 64) && shape.experts <= kMaxExperts &&
         shape.rows >= kGroupedRows && shape.slots() >= kGroupedSlots * shape.experts;
}

// Bytes of scratch of kExpertSorted besides f(x) and its codes: the rows of one expert, and up to 16 slots a row, each
// with its index, its input row, its fault row and, for each chunk, a metric and a stream length.
int64_t SortedBytes(int64_t chunk_d, int64_t in_features, int64_t rows) {
  constexpr int64_t kSlots = 16, kPlaceBytes = 2 * sizeof(int32_t) + sizeof(uint64_t);
  const int64_t chunks = MakeScDims(in_features, chunk_d).chunks;
  return rows * (in_features * kFloat + kSlots * (kPlaceBytes + chunks * (kFloat + 1)));
}

int64_t QuantizeBytes(const ScTraits& sc, int64_t in_features, int64_t rows) {
  const ScDims dims = MakeScDims(in_features, sc.chunk_d);
  // 2 * kFloat: zero points and sums of asymmetric codes.
  return rows * (dims.padded + dims.chunks * kFloat + 2 * kFloat);
}

}  // namespace

ExpertPlan PlanExperts(const GpuTraits& gpu, const LinearOperand& weights, const ExpertShape& shape,
                       const LinearPass& pass) {
  ExpertPlan plan;
  switch (weights.kind) {
    case LinearKind::kSc: return PlanExperts(gpu, weights.sc, shape);
    case LinearKind::kMixed:
      if (!weights.mixed.is_alone || pass.observed) plan.route = LinearRoute::kExpertSorted;
      break;
    case LinearKind::kExact:
    case LinearKind::kFixed: plan.route = LinearRoute::kExactExpert; break;
    case LinearKind::kHalf: plan.route = LinearRoute::kHalfExpert; break;
  }
  return plan;
}

ExpertPlan PlanExperts(const GpuTraits& gpu, const ScTraits& sc, const ExpertShape& shape) {
  if (sc.scope_rows != 1) return {.route = LinearRoute::kExpertSorted};
  ExpertPlan plan;
  const ScDims dims = MakeScDims(shape.in_features, sc.chunk_d);
  if (CanGroup(gpu, sc, shape)) {
    plan.route = LinearRoute::kExpertGroups;
    const int64_t used = std::min(shape.experts, shape.slots());
    plan.max_tiles = (shape.slots() - used) / kPrefillTileTokens + used;
    plan.tiles_at_once = std::clamp<int64_t>(
        StreamBytes(sc, shape.in_features, shape.rows) / TileBytes(sc, shape.in_features), 1, plan.max_tiles);
    return plan;
  }
  if (!CanLookUp(sc, dims, shape)) return plan;
  plan.route = LinearRoute::kExpertLookup;
  const int64_t row_units = RowBlocks(shape) * dims.chunks;
  const int64_t row_bytes = row_units * kTileRows * kFloat;
  plan.rows_at_once = std::clamp<int64_t>(ProductBytes(shape.in_features, shape.rows) / row_bytes, 1, shape.rows);
  // If rows have few units, a block meets many rows: halve rows_at_once until their (slot, matrix) pairs fit a block.
  const int64_t tasks = shape.row_slots * shape.matrices;
  while (plan.rows_at_once > 1 &&
         PlanExpertLookup(gpu, dims, shape, plan.rows_at_once).max_tasks > std::max(kMaxTasks, 4 * tasks)) {
    plan.rows_at_once = DivideUp(plan.rows_at_once, 2);
  }
  return plan;
}

ExpertLookupPlan PlanExpertLookup(const GpuTraits& gpu, const ScDims& dims, const ExpertShape& shape, int64_t rows) {
  ExpertLookupPlan plan;
  const int64_t row_blocks = RowBlocks(shape);
  const int64_t chunks = rows * dims.chunks;
  plan.blocks = DecodeBlocks(gpu, kWarps, chunks, row_blocks);
  const int64_t units = chunks * row_blocks;
  const int64_t most = DivideUp(units, plan.blocks);  // units of a block
  const int64_t touched = std::min<int64_t>(chunks, (most + row_blocks - 2) / row_blocks + 1);
  const bool aligned = units % plan.blocks == 0 && row_blocks % (units / plan.blocks) == 0;  // one chunk a block
  plan.staged = aligned ? 1 : static_cast<int>(std::min<int64_t>(touched, 2));
  const int64_t touched_rows = std::min<int64_t>(rows, (touched + dims.chunks - 2) / dims.chunks + 1);
  plan.max_tasks = static_cast<int>(touched_rows * shape.row_slots * shape.matrices);
  const int64_t places = shape.experts * shape.matrices;
  plan.places = places <= kMaxPlaces ? static_cast<int>(places) : 0;
  plan.shared_bytes = kDecodeFusedBytes + plan.staged * kDecodeStageBytes + kExpertNormBytes +
                      (plan.max_tasks + plan.places) * kExpertTaskBytes;
  return plan;
}

bool CanCombine(const ExpertPlan& plan, const ExpertShape& shape, int64_t top_k) {
  return plan.route == LinearRoute::kExpertLookup && shape.row_slots == 1 && shape.matrices == 1 &&
         top_k <= kMaxCombinedSlots && plan.rows_at_once >= top_k;
}

Handover CombinedHandover(const ExpertPlan& plan, const ExpertShape& shape, int64_t top_k) {
  const bool is_one_row = CanCombine(plan, shape, top_k) && shape.rows == top_k;
  return is_one_row ? Handover::kWords : Handover::kMemory;
}

std::string ExpertRouteText(const GpuTraits& gpu, const LinearSpec& spec, const ExpertShape& shape) {
  const LinearRoute route = PlanExperts(gpu, MakeLinearOperand(spec, shape.in_features), shape).route;
  const bool is_plain = route == LinearRoute::kExpertGeneric || route == LinearRoute::kExpertSorted;
  std::string reason = is_plain ? PlainReason(spec) : "";
  if (route == LinearRoute::kExpertSorted && reason.empty()) reason = "rows share scales";
  return std::string(LinearRouteName(route)) + BecauseOf(reason);
}

int64_t ExpertLaunchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features, int64_t max_rows) {
  const int64_t products = ProductBytes(in_features, max_rows);
  if (!CanPrefillWgmma(gpu, sc) || max_rows < kGroupedRows) return products;
  return std::max(products, StreamBytes(sc, in_features, max_rows) + kListBytes + max_rows * 16 * kFloat);
}

int64_t ExpertScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features, int64_t max_rows) {
  constexpr int64_t kParts = 16;                        // most arrays, each of which is aligned
  constexpr int64_t kColumns = int64_t{kDotLanes} * 8;  // most columns of padding of a row of floats
  int64_t bytes = kParts * ScratchLayout::kAlignment;
  if (spec.precision != Precision::kSc) return bytes + max_rows * (in_features + kColumns) * kFloat;
  const ScTraits sc = MakeScTraits(*spec.sc);
  if (NeedsMixed(spec) || sc.scope_rows != 1) {
    return bytes + MixedPartBytes(*spec.sc, max_rows, in_features) + SortedBytes(sc.chunk_d, in_features, max_rows);
  }
  return bytes + QuantizeBytes(sc, in_features, max_rows) + ExpertLaunchBytes(gpu, sc, in_features, max_rows);
}

}  // namespace stoch
