// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the routes of attention.
#include <algorithm>
#include <initializer_list>

#include "kernels/math/number_formats.h"
#include "kernels/math/reduce.h"
#include "kernels/plan/attention/plan.h"
#include "kernels/plan/divide_up.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/scratch_layout.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Bytes of the codes and scales of the queries and, in kPerHead and kPerRow, of the scales and extremes of all windows
// of a pass.
int64_t QueryBytes(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t heads = limits.max_rows * shape.num_heads;
  ScratchLayout layout;
  layout.AddBytes(heads * shape.head_dim);
  layout.Add<float>(heads);
  if (shape.mode == AttentionMode::kPerHead || shape.mode == AttentionMode::kPerRow) {
    const int64_t q_heads = limits.max_sequences * shape.num_heads;
    const int64_t kv_heads = limits.max_sequences * shape.num_kv_heads;
    layout.Add<float>(kv_heads * shape.head_dim);
    layout.Add<float>(q_heads);
    layout.Add<float>(q_heads + kv_heads + kv_heads * shape.head_dim);
  }
  return layout.bytes();
}

int64_t SpillBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  const SpillPlan spill = PlanSpill(gpu, shape, limits);
  ScratchLayout layout;
  if (spill.stride == 0) return 0;
  const int64_t heads = spill.rows_at_once * shape.num_heads;
  layout.Add<float>(spill.stride * heads);
  if (spill.parts == 0) return layout.bytes();
  layout.Add<float>(heads * spill.parts);
  layout.Add<float>(heads * spill.parts);
  layout.Add<float>(heads * kSplitUnit);
  layout.Add<float>(shape.mode == AttentionMode::kExact ? heads * kDotLanes * shape.head_dim
                                                        : SplitSums(gpu, shape, spill.rows_at_once));
  layout.Add<float>(heads);
  return layout.bytes();
}

int64_t Sum(std::initializer_list<int64_t> arrays) {
  ScratchLayout layout;
  for (const int64_t bytes : arrays) layout.AddBytes(bytes);
  return layout.bytes();
}

// Bytes of the tables and slots of the queries, the slots of the probabilities, and the query codes as ranks.
int64_t LengthBytes(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t vectors = limits.max_rows * shape.num_heads;
  return Sum({vectors * kLengthTableBytes, vectors, vectors, vectors * shape.head_dim});
}

// Bytes of the codes and scales of the queries, of metrics, slots, extremes and scores.
int64_t PlainBytes(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t vectors = limits.max_rows * shape.num_heads;
  const int64_t scores = MixedRowsAtOnce(shape, limits) * shape.num_heads * limits.max_context;
  return Sum({vectors * shape.head_dim, vectors * shape.key_scales * kFloat, vectors * kFloat, vectors, vectors,
              2 * kFloat, scores * kFloat});
}

// OperandBytes: bytes of an operand of a plain product: codes, scales, zero points, sums and extremes. Integers have a
// scale for every 128 dimensions, MXINT8 for every 32.
constexpr int64_t kIntChunk = 128;
int64_t OperandBytes(int64_t rows, int64_t cols, int64_t chunk = kIntChunk) {
  constexpr int64_t kExtremesBytes = 12;
  const int64_t padded = DivideUp(rows, kRowPadding) * kRowPadding;
  const int64_t chunks = DivideUp(cols, chunk);
  return Sum({padded * (cols + chunks * kTileDims), padded * chunks * kFloat, padded * kFloat, padded * kFloat,
              padded * chunks * kExtremesBytes});
}

// Bytes of queries, metrics, slots and extremes, of keys, values and scores of one head, and of the operands made from
// queries, keys, values and probabilities.
int64_t PlainWindowBytes(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t vectors = limits.max_rows * shape.num_heads;
  const int64_t window = limits.max_context * shape.head_dim * kFloat;
  const int64_t floats = Sum({vectors * shape.head_dim * kFloat, vectors * kFloat, vectors, vectors, 2 * kFloat, window,
                              window, limits.max_rows * limits.max_context * kFloat});
  const int64_t head_chunk = shape.key_scales > 1 ? kMxBlock : kIntChunk;
  const int64_t rows = std::max(OperandBytes(limits.max_rows, shape.head_dim, head_chunk),
                                OperandBytes(limits.max_rows, limits.max_context));
  return floats + OperandBytes(limits.max_context, shape.head_dim, head_chunk) +
         OperandBytes(shape.head_dim, limits.max_context) + rows;
}

}  // namespace

int64_t MixedRowsAtOnce(const AttentionShape& shape, const AttentionLimits& limits) {
  constexpr int64_t kScoreBytes = int64_t{64} << 20;
  constexpr int64_t kGridRows = 32768;  // gridDim is limited to 65535
  const int64_t row_bytes = limits.max_context * shape.num_heads * kFloat;
  return std::clamp<int64_t>(kScoreBytes / row_bytes, 1, std::min(limits.max_rows, kGridRows));
}

int64_t RouteScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits,
                          AttentionRoute route) {
  using enum AttentionRoute;
  const auto spill = [&] { return SpillBytes(gpu, shape, limits); };
  const auto queries = [&] { return QueryBytes(shape, limits); };
  switch (route) {
    case kScFreshRows:
    case kMixedFresh:
    case kExactRows:
    case kExactSplit: return spill();
    case kScRows:
    case kScWindowRows:
    case kScLookup:
    case kScResident:
    case kScSplit: return queries() + spill();
    case kScTiles: return queries() + TileScratchBytes(gpu, shape, limits);
    case kScWide: return queries() + WideScratchBytes(gpu, shape, limits);
    case kMixedRows: return queries() + LengthBytes(shape, limits) + spill();
    case kMixedWide: return queries() + LengthBytes(shape, limits) + WideScratchBytes(gpu, LongestShape(shape), limits);
    case kPlainRows: return PlainBytes(shape, limits);
    case kPlainWindow: return PlainWindowBytes(shape, limits);
    case kDealtSplit:  // counted in ring.h
    case kDealtRows:
    case kHalfTiles: return 0;
  }
  return 0;
}

int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionShape& shape, const AttentionLimits& limits) {
  int64_t most = 0;
  const auto take = [&](std::initializer_list<AttentionRoute> routes) {
    for (const AttentionRoute route : routes) most = std::max(most, RouteScratchBytes(gpu, shape, limits, route));
  };
  const bool has_tiles = limits.max_rows >= kLongSequenceRows;
  if (shape.dilated) take({AttentionRoute::kPlainRows});
  switch (shape.lengths) {
    case AttentionLengths::kUniform: break;
    case AttentionLengths::kByTile:
      if (has_tiles && shape.stripes == 1) take({AttentionRoute::kMixedWide});
      [[fallthrough]];
    case AttentionLengths::kByRow:
      if (shape.stripes == 1) take({AttentionRoute::kMixedRows});
      [[fallthrough]];
    case AttentionLengths::kAny:
      if (shape.mode == AttentionMode::kExact) break;
      take({shape.mode == AttentionMode::kPerToken ? AttentionRoute::kPlainRows : AttentionRoute::kPlainWindow});
      return most;
  }
  if (shape.mode == AttentionMode::kExact) {
    take({AttentionRoute::kExactRows});
  } else {
    take({AttentionRoute::kScRows});
    // Tiles give their scratch back before rows take theirs, so the largest counts.
    if (has_tiles && PlanScTiles(gpu, shape)) take({AttentionRoute::kScTiles});
    if (has_tiles && PlanWideTiles(gpu, shape)) take({AttentionRoute::kScWide});
  }
  return most;
}

int64_t AttentionScratchBytes(const GpuTraits& gpu, const AttentionLayers& layers, const AttentionLimits& limits) {
  int64_t most = 0;
  for (const AttentionShape& shape : layers.shapes) most = std::max(most, AttentionScratchBytes(gpu, shape, limits));
  return most;
}

}  // namespace stoch
