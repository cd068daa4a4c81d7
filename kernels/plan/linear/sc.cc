// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/sc.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/plan/divide_up.h"
#include "kernels/plan/linear/decode_blocks.h"
#include "kernels/plan/scratch_layout.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kExtremesBytes = 12;  // Extremes of kernels/cuda/device/reduce.cuh

// Least tokens for which one look-up for all tokens beats one for each token, although its table takes longer to build.
constexpr int64_t kFirstFewTokens = 2;
constexpr int64_t kFirstTableTokens = 5;
constexpr int64_t kMaxRepeatedTokens = 128;  // most tokens that several launches of table kernels take

bool Fits(const GpuTraits& gpu, int64_t dynamic_bytes, int64_t static_bytes) {
  return dynamic_bytes + static_bytes <= gpu.max_shared_bytes;
}

bool SumsAreWide(const ScTraits& sc, const ScDims& dims) { return int64_t{sc.max_count} * dims.chunk_d > INT16_MAX; }

// Groups of `rows` weight rows of all matrices; the last group of a matrix may have fewer.
int64_t Groups(const LinearShape& shape, int64_t rows) {
  int64_t groups = 0;
  for (const int64_t out : shape.out_features) groups += DivideUp(out, rows);
  return groups;
}

int64_t QuantizeBytes(const ScTraits& sc, const LinearShape& shape, const ScDims& dims, ScQuantizer quantizer) {
  const int64_t tokens = shape.tokens;
  const int64_t scales = ScratchLayout::Aligned(tokens * dims.chunks * kFloat);
  if (quantizer == ScQuantizer::kKernel) return scales;  // if the kernel stores any
  int64_t bytes = ScratchLayout::Aligned(tokens * dims.padded) + scales;
  if (quantizer == ScQuantizer::kByChunk) return bytes;
  if (sc.code == ScCode::kAsymmetric) bytes += 2 * ScratchLayout::Aligned(tokens * kFloat);  // zero points, sums
  const int64_t scope = sc.scope_rows > 0 ? sc.scope_rows : tokens;
  if (scope > 1) {  // f(x) as floats, and the extremes of its scopes
    bytes += ScratchLayout::Aligned(tokens * shape.in_features * kFloat) +
             ScratchLayout::Aligned(DivideUp(tokens, scope) * dims.chunks * kExtremesBytes);
  }
  return bytes;
}

// ---- kDecode
bool CanDecode(const ScTraits& sc, const ScDims& dims, int64_t tokens) {
  return sc.code == ScCode::kSignMagnitude && sc.has_bytes && dims.chunk_d <= kDecodeChunkDims &&
         tokens <= kMaxDecodeTokens;
}

// mixed: rows have several lengths, and a chunk is staged for every matrix on its own.
LinearPlan PlanDecode(const GpuTraits& gpu, const LinearShape& shape, const ScDims& dims, bool mixed, bool fused) {
  LinearPlan plan;
  plan.route = LinearRoute::kScDecode;
  if (fused) plan.quantizer = ScQuantizer::kKernel;
  plan.tile_tokens = shape.tokens <= 2 ? static_cast<int>(shape.tokens) : shape.tokens <= 4 ? 4 : 8;
  plan.static_bytes = mixed ? kDecodeMixedStaticBytes : 0;
  if (fused && !mixed && shape.tokens == 1) plan.handover = Handover::kWords;
  // Tokens that do not fit one launch take two, over the same weights.
  if (!Fits(gpu, plan.tile_tokens * kDecodeStageBytes, plan.static_bytes)) plan.tile_tokens = 4;
  const int64_t row_blocks = Groups(shape, kTileRows);
  const int64_t warps = plan.tile_tokens == 1 ? 16 : 24;
  plan.blocks = DecodeBlocks(gpu, warps, dims.chunks, row_blocks);
  const int64_t units = dims.chunks * row_blocks;
  const int64_t most = DivideUp(units, plan.blocks);  // units of a block
  const int64_t touched = std::min<int64_t>(dims.chunks, (most + row_blocks - 2) / row_blocks + 1);
  const bool aligned = units % plan.blocks == 0 && row_blocks % (units / plan.blocks) == 0;  // one chunk a block
  const auto matrices = mixed ? static_cast<int64_t>(shape.out_features.size()) : 1;
  plan.staged = aligned && matrices == 1
                    ? 1
                    : static_cast<int>(std::min<int64_t>(touched * matrices, plan.tile_tokens <= 2 ? 2 : 1));
  plan.shared_bytes = (fused ? kDecodeFusedBytes : 0) + plan.staged * plan.tile_tokens * kDecodeStageBytes;
  const int64_t tokens = std::min<int64_t>(shape.tokens, plan.tile_tokens);
  plan.launch_bytes = ScratchLayout::Aligned(tokens * units * kTileRows * kFloat);
  if (tokens < shape.tokens)
    plan.launch_bytes += ScratchLayout::Aligned(tokens * dims.chunks * kFloat);  // scales of the tokens of one launch
  return plan;
}

// ---- kFew, kTable

// At most one block per SM. The number is rounded down, by at most a sixth, so that every block works on one part (or
// on whole parts, if there are more parts than blocks): a block builds a table for each part that it works on.
int TableBlocks(const GpuTraits& gpu, int64_t parts, int64_t row_blocks) {
  const int64_t most = std::min<int64_t>(gpu.sm_count, DivideUp(parts * row_blocks, 16));
  const int64_t each = DivideUp(parts, most);
  const int64_t whole = parts > most ? DivideUp(parts, each) : most / parts * parts;
  return static_cast<int>(whole * 6 >= most * 5 ? whole : most);
}

struct TableVariant {
  LinearRoute route;
  int tokens;
  int pairs;  // pairs of weight tiles that are loaded ahead
  int parts;  // parts into which a chunk is cut
  int64_t static_bytes;
  int64_t table_bytes = kBatchTableBytes;
  int64_t shared_bytes() const { return table_bytes + pairs * kBatchPairBytes; }
};
// Codes are loaded as far ahead as shared memory allows: 4 pairs ahead are faster for 4 tokens (by 0.4 % of a step),
// but an A100 has room for 2. With 99 KB of shared memory, a chunk is cut into two parts, with tables of half the size.
constexpr TableVariant kFewFarAhead = {LinearRoute::kScFew, kMaxBatchFewTokens, 4, 1, kFewStaticBytes};
constexpr TableVariant kFewNearAhead = {LinearRoute::kScFew, kMaxBatchFewTokens, 2, 1, kFewStaticBytes};
constexpr TableVariant kFewSmall = {LinearRoute::kScFew, kMaxBatchFewTokens,   2, 2,
                                    kFewStaticBytes,     kBatchSmallTableBytes};
constexpr TableVariant kEight = {LinearRoute::kScTable, 8, 4, 1, kEightStaticBytes};
constexpr TableVariant kEightSmall = {LinearRoute::kScTable, 8, 2, 2, kEightSmallStaticBytes, kBatchSmallTableBytes};
constexpr TableVariant kSixteen = {LinearRoute::kScTable, kMaxBatchTableTokens, 2, 2, kSixteenStaticBytes};

bool CanLookUp(const GpuTraits& gpu, const ScTraits& sc, const ScDims& dims, const TableVariant& variant) {
  return sc.code == ScCode::kSignMagnitude && !SumsAreWide(sc, dims) && dims.chunk_d <= kDecodeChunkDims &&
         Fits(gpu, variant.shared_bytes(), variant.static_bytes);
}

// Most launches of table kernels that still beat tiles of 32 or 64 tokens (measured: docs/tuning/batch.md); 1 if table
// kernels cannot quantize, if wgmma takes the tokens, or beyond kMaxRepeatedTokens.
int64_t MostTableLaunches(const GpuTraits& gpu, const ScTraits& sc, const TableVariant& variant, int64_t tokens) {
  if (gpu.has_wgmma || sc.scope_rows != 1 || tokens > kMaxRepeatedTokens) return 1;
  const bool small = variant.tokens < kMaxBatchTableTokens;
  if (gpu.has_binary_mma) return small ? 2 : 1;
  return DivideUp(tokens, kTileTokensNarrow) * (small ? 3 : 2);
}

LinearPlan PlanTable(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, const ScDims& dims,
                     const TableVariant& variant) {
  LinearPlan plan;
  plan.route = variant.route;
  if (variant.route == LinearRoute::kScTable && !gpu.has_binary_mma) plan.sums = BitProducts::kInt8;
  if (sc.scope_rows == 1) plan.quantizer = ScQuantizer::kKernel;
  plan.tile_tokens = variant.tokens;
  plan.stages = variant.pairs;
  plan.shared_bytes = variant.shared_bytes();
  plan.static_bytes = variant.static_bytes;
  const int64_t row_blocks = Groups(shape, 32 * variant.parts);
  const int64_t parts = dims.chunk_stride > kDecodeChunkDims / variant.parts ? variant.parts : 1;
  plan.blocks = TableBlocks(gpu, dims.chunks * parts, row_blocks);
  // An int16 for every part, row and token. With 4 tokens, two groups of rows share the space of 8 tokens.
  const int64_t tokens = std::max(variant.tokens, 4);
  plan.launch_bytes = ScratchLayout::Aligned(dims.chunks * parts * row_blocks * 32 * variant.parts * tokens * 2);
  return plan;
}

// ---- kBatchWgmma

// Whether the operator is of the kind that most models use (halved, 128 cycles). Fewer kernels are compiled for other
// kinds.
bool IsUsual(const ScTraits& sc) { return sc.stoc_len == 128 && sc.direct_ranks; }

// The smallest tile with which there are no more tiles than with the largest, because weights are expanded again for
// every tile. Tiles of 24 and 48 are worth their kernels (6 % of a step of 17 to 24 tokens of an 8B model, 11 % of one
// of 33 to 48), and so are tiles of 96 (20 % of a prompt of 65 to 96 tokens). Beyond 96 tokens, tiles of 96 would save
// 10 to 15 %, but their partials need more scratch than any other linear does (8B, 192 tokens: 352 MB instead of 235).
int BatchTileTokens(bool usual, int64_t tokens) {
  if (!usual) return tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
  const int largest = tokens <= 96 ? 96 : 64;
  const int64_t tiles = DivideUp(tokens, largest);
  for (const int tile : {16, 24, 32, 48, 64}) {
    if (tile * tiles >= tokens) return tile;
  }
  return largest;
}

// Uses owners if they keep two of three SMs busy, because passing split-K partials through memory takes half as long as
// computing them (measured). Owners are compiled for the usual operator only, and not for tiles of 96, with which their
// outputs would spill registers and be slower (prompts of 80 tokens by 4 %, of 140 by 11 %).
BatchShares MakeShares(const GpuTraits& gpu, const StreamShape& streams, bool usual, int64_t row_tiles) {
  const int chunks = streams.chunks;
  const int tiles = static_cast<int>(row_tiles * streams.token_tiles);
  const int waves = (tiles + gpu.sm_count - 1) / gpu.sm_count;
  BatchShares shares;
  shares.blocks = static_cast<int>(std::min<int64_t>(gpu.sm_count, int64_t{tiles} * chunks));
  shares.stored_chunks = chunks;
  if (!usual || streams.tile_tokens == 96 || 3 * tiles < 2 * waves * gpu.sm_count) return shares;
  shares.owners = (tiles + waves - 1) / waves;
  const int helpers = gpu.sm_count - shares.owners;
  constexpr int kConsumerWarps = 16;
  if (int64_t{tiles} * kConsumerWarps <= kBlockFlags) {
    shares.helped = static_cast<int>(int64_t{waves} * chunks * helpers / (tiles + waves * helpers));
  }
  if (shares.helped == 0) shares.blocks = shares.owners;
  shares.stored_chunks = shares.helped;
  return shares;
}

// Bytes of a stage: the streams of a few blocks of 16 dimensions, up to 36 KB, or 54 KB with 96 tokens.
int64_t BatchStageBytes(const StreamShape& streams) {
  const int blocks = (streams.tile_tokens <= 32 ? 4 : 2) / streams.halves;
  return int64_t{blocks} * streams.halves * streams.block_bytes();
}

int64_t RankTableBytes(const ScTraits& sc, const StreamShape& streams) {
  return int64_t{streams.halves} * std::max(sc.masks, 16) * 128;
}

// Sets *plan to kScBatch. Returns false if the kernel does not take the shape, or its ring or its reduction at the end
// does not fit shared memory.
bool PlanBatchWgmma(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, const ScDims& dims,
                    LinearPlan* plan) {
  if (!gpu.has_wgmma || !CanPrefill(sc) || shape.tokens > kMaxBatchWgmmaTokens) return false;
  const bool usual = IsUsual(sc);
  const StreamShape streams = MakeStreamShape(dims, shape.tokens, BatchTileTokens(usual, shape.tokens), sc.stoc_len);
  const int64_t table_bytes = usual ? kBatchThermometerBytes : RankTableBytes(sc, streams);
  const int64_t stage_bytes = BatchStageBytes(streams);
  const int64_t room = gpu.max_shared_bytes - kRingHeaderBytes;
  plan->route = LinearRoute::kScBatch;
  plan->tile_tokens = streams.tile_tokens;
  plan->stages = static_cast<int>(std::clamp<int64_t>((room - table_bytes) / stage_bytes, 0, kBatchMaxStages));
  if (plan->stages < 2 || kBatchCombineBytes > room) return false;
  plan->shared_bytes = kRingHeaderBytes + std::max(plan->stages * stage_bytes + table_bytes, kBatchCombineBytes);
  const int64_t row_tiles = Groups(shape, kBatchRows);
  plan->shares = MakeShares(gpu, streams, usual, row_tiles);
  plan->blocks = plan->shares.blocks;
  const int64_t sum_bytes = SumsAreWide(sc, dims) ? sizeof(int32_t) : sizeof(int16_t);
  plan->launch_bytes =
      ScratchLayout::Aligned(streams.bytes()) + ScratchLayout::Aligned(streams.scale_count() * kFloat) +
      ScratchLayout::Aligned(plan->shares.stored_chunks * row_tiles * kBatchRows * streams.tokens_padded() * sum_bytes);
  return true;
}

// ---- kScTiles, kScPrompt
constexpr int TileRows(int tile_tokens) { return tile_tokens == kTileTokensNarrow ? 512 : 256; }

// Bytes of a stage. mixed: tokens have gains of their own.
int64_t PrefillStageBytes(const StreamShape& streams, bool mixed) {
  return streams.block_bytes() + kPrefillTileTokens * (mixed ? 8 : 4) + kPrefillSuperRows / 2 * 4;
}

int PrefillStages(const GpuTraits& gpu, const StreamShape& streams, int64_t table_bytes, bool mixed) {
  const int64_t room = gpu.max_shared_bytes - kRingHeaderBytes - table_bytes;
  return static_cast<int>(std::clamp<int64_t>(room / PrefillStageBytes(streams, mixed), 0, kPrefillMaxStages));
}

int64_t PrefillTableBytes(const ScTraits& sc, const StreamShape& streams) {
  return sc.direct_ranks ? 0 : RankTableBytes(sc, streams);
}

// Whether one kernel makes the streams of f(x) (ScQuantizer::kStreams): for many rows of one length, each with its own
// scales, and if its table fits shared memory.
bool MakesStreams(const GpuTraits& gpu, const ScTraits& sc, const ScDims& dims, int64_t tokens, bool aligned) {
  return aligned && tokens >= kStreamFewestRows && sc.scope_rows == 1 && sc.code == ScCode::kSignMagnitude &&
         sc.stoc_len <= kMaxStreamCycles / 2 && HoldsVectors(dims, sc.code) &&
         StreamTableBytes(sc.masks, sc.levels, dims) + kStreamCodeBytes <= gpu.max_shared_bytes;
}

// Shared memory of the tile kernels: stages with the operands of the tokens, and a table.
struct TileShared {
  int stages;
  int stage_dims;
  int64_t operand_bytes;  // bytes of a stage's operands
  int64_t table_bytes;    // bytes of the block's table
};
TileShared TileSharedOf(TileForm form, const ScTraits& sc, const StreamShape& streams) {
  const int64_t tokens = streams.tile_tokens;
  switch (form) {
    case TileForm::kClosed: return {kTileFormStages, kTileFormDims, tokens * kTileFormTokenBytes, kTileFormTableBytes};
    case TileForm::kInt8:
      return {kTileInt8Stages, kTileInt8Dims, tokens * kTileInt8TokenBytes,
              TileRows(streams.tile_tokens) / 32 * kTileFlipBytes};
    case TileForm::kStreams: break;
  }
  if (IsUsual(sc)) return {kTileStages, kTileDims, streams.block_bytes(), 0};
  return {kTileTableStages, kTileDims, streams.block_bytes(), RankTableBytes(sc, streams)};
}

ScQuantizer QuantizerOf(const ScTraits& sc, const ScDims& dims, int64_t tokens) {
  const bool by_chunk = tokens <= kMaxBatchWgmmaTokens && sc.code == ScCode::kSignMagnitude && sc.scope_rows == 1 &&
                        dims.chunk_d <= kDecodeChunkDims;
  return by_chunk ? ScQuantizer::kByChunk : ScQuantizer::kByRow;
}

}  // namespace

bool CanPrefill(const ScTraits& sc) {
  return sc.code == ScCode::kSignMagnitude && sc.has_streams && sc.stoc_len <= kMaxStreamCycles;
}

bool CanPrefillWgmma(const GpuTraits& gpu, const ScTraits& sc, bool mixed) {
  if (!gpu.has_wgmma || !CanPrefill(sc)) return false;
  const StreamShape streams = MakeStreamShape(MakeScDims(16, 0), 1, kPrefillTileTokens, sc.stoc_len);
  return PrefillStages(gpu, streams, PrefillTableBytes(sc, streams), mixed) >=
         2;  // one stage is read while another is filled
}

int64_t TileOperandBytes(TileForm form, const ScDims& dims, int64_t tokens, int tile_tokens) {
  STOCH_CHECK(form != TileForm::kStreams);
  const bool int8 = form == TileForm::kInt8;
  return dims.chunks * DivideUp(dims.chunk_stride, int8 ? kTileInt8Dims : kTileFormDims) *
         DivideUp(tokens, tile_tokens) * tile_tokens * (int8 ? kTileInt8TokenBytes : kTileFormTokenBytes);
}

LinearPlan PlanScTiles(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, std::optional<bool> split) {
  STOCH_CHECK(CanPrefill(sc));
  const ScDims dims = MakeScDims(shape.in_features, sc.chunk_d);
  const auto tiles_of = [&](int tile_tokens) {
    return Groups(shape, TileRows(tile_tokens)) * DivideUp(shape.tokens, tile_tokens);
  };
  // Blocks that compute whole tiles pass no partials through memory, but there must be enough tiles to fill the GPU.
  const int64_t tiles = tiles_of(kTileTokensWide);
  const int64_t waves = DivideUp(tiles, gpu.sm_count);
  const bool fills = shape.tokens > kTileTokensNarrow && 3 * tiles >= 2 * waves * gpu.sm_count;
  LinearPlan plan;
  const bool is_split = split.value_or(shape.tokens <= kMaxBatchWgmmaTokens && !fills);
  plan.route = is_split ? LinearRoute::kScTilesSplit : LinearRoute::kScTiles;
  plan.tile_tokens = is_split && shape.tokens <= kTileTokensNarrow ? kTileTokensNarrow : kTileTokensWide;
  plan.quantizer = QuantizerOf(sc, dims, shape.tokens);
  plan.quantize_bytes = QuantizeBytes(sc, shape, dims, plan.quantizer);
  const StreamShape streams = MakeStreamShape(dims, shape.tokens, plan.tile_tokens, sc.stoc_len);
  plan.tile_form = TileFormOf(gpu, sc);
  const TileShared shared = TileSharedOf(plan.tile_form, sc, streams);
  const int rows = TileRows(plan.tile_tokens);
  plan.stages = shared.stages;
  const int64_t scale_bytes = is_split ? 0 : (rows + plan.tile_tokens) * kFloat;
  plan.shared_bytes =
      shared.table_bytes + plan.stages * (shared.operand_bytes + rows * shared.stage_dims + scale_bytes);
  const int64_t operand_bytes = plan.tile_form == TileForm::kStreams
                                    ? streams.bytes()
                                    : TileOperandBytes(plan.tile_form, dims, shape.tokens, plan.tile_tokens);
  plan.launch_bytes = ScratchLayout::Aligned(operand_bytes) + ScratchLayout::Aligned(streams.scale_count() * kFloat);
  plan.blocks = static_cast<int>(tiles_of(plan.tile_tokens));
  if (!is_split) return plan;
  plan.shared_bytes = std::max(plan.shared_bytes, kTileCombineBytes);
  plan.blocks = static_cast<int>(std::min<int64_t>(gpu.sm_count, int64_t{plan.blocks} * dims.chunks));
  const int64_t sum_bytes = SumsAreWide(sc, dims) ? sizeof(int32_t) : sizeof(int16_t);
  plan.launch_bytes +=
      ScratchLayout::Aligned(dims.chunks * Groups(shape, rows) * rows * streams.tokens_padded() * sum_bytes);
  return plan;
}

LinearPlan PlanScPrefill(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, bool mixed) {
  STOCH_CHECK(CanPrefillWgmma(gpu, sc, mixed));
  const ScDims dims = MakeScDims(shape.in_features, sc.chunk_d);
  const StreamShape streams = MakeStreamShape(dims, shape.tokens, kPrefillTileTokens, sc.stoc_len);
  LinearPlan plan;
  plan.route = LinearRoute::kScPrompt;
  plan.quantizer = QuantizerOf(sc, dims, shape.tokens);
  plan.quantize_bytes = QuantizeBytes(sc, shape, dims, plan.quantizer);
  plan.tile_tokens = kPrefillTileTokens;
  plan.launch_bytes = ScratchLayout::Aligned(streams.bytes()) +
                      (mixed ? 2 : 1) * ScratchLayout::Aligned(streams.scale_count() * kFloat);
  const int64_t table_bytes = PrefillTableBytes(sc, streams);
  plan.stages = PrefillStages(gpu, streams, table_bytes, mixed);
  plan.shared_bytes = kRingHeaderBytes + plan.stages * PrefillStageBytes(streams, mixed) + table_bytes;
  // Upper bound of PrefillSchedule::rest(): fewer tiles than there are clusters of two SMs, plus the tiles of the last
  // tokens.
  const int64_t supers = Groups(shape, kPrefillSuperRows);
  const int64_t rest = std::min(supers * streams.token_tiles, gpu.sm_count / 2 + supers);
  plan.launch_bytes += ScratchLayout::Aligned(rest * kPrefillSuperRows * kPrefillTileTokens * kFloat) +
                       ScratchLayout::Aligned(rest * kPrefillTileFlags * kFloat);
  return plan;
}

bool CanDecodeMixed(const ScTraits& sc, int64_t in_features) {
  return sc.scope_rows == 1 && CanDecode(sc, MakeScDims(in_features, sc.chunk_d), 1);
}

LinearPlan PlanMixedDecode(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, bool fused) {
  STOCH_CHECK(CanDecodeMixed(sc, shape.in_features) && shape.tokens <= (fused ? 1 : kMaxDecodeTokens));
  const ScDims dims = MakeScDims(shape.in_features, sc.chunk_d);
  LinearPlan plan = PlanDecode(gpu, shape, dims, true, fused);
  if (!fused) plan.quantizer = ScQuantizer::kByRow;
  plan.quantize_bytes = QuantizeBytes(sc, shape, dims, plan.quantizer);
  return plan;
}

LinearPlan PlanScLinear(const GpuTraits& gpu, const ScTraits& sc, const LinearShape& shape, const LinearPass& pass) {
  STOCH_CHECK(shape.tokens >= 1 && !shape.out_features.empty() && shape.out_features.size() <= kMaxScTasks);
  const ScDims dims = MakeScDims(shape.in_features, sc.chunk_d);
  const int64_t tokens = shape.tokens;
  LinearPlan plan;
  const auto with_quantizer = [&](LinearPlan chosen) {
    if (chosen.quantizer != ScQuantizer::kKernel) chosen.quantizer = QuantizerOf(sc, dims, tokens);
    chosen.quantize_bytes = QuantizeBytes(sc, shape, dims, chosen.quantizer);
    return chosen;
  };
  // Use several launches of kScFew if there are no residuals and tiles would need emulated binary products.
  const bool repeats = !gpu.has_binary_mma && !sc.has_residuals && sc.scope_rows == 1;
  if (tokens >= kFirstFewTokens && tokens <= (repeats ? kMaxBatchTableTokens : kMaxBatchFewTokens) && sc.has_quarters &&
      sc.max_count <= 128) {
    for (const TableVariant& variant : {kFewFarAhead, kFewNearAhead, kFewSmall}) {
      if (CanLookUp(gpu, sc, dims, variant)) return with_quantizer(PlanTable(gpu, sc, shape, dims, variant));
    }
  }
  if (sc.has_residuals && tokens >= kFirstTableTokens) {
    for (const TableVariant& variant : {kEight, kEightSmall, kSixteen}) {
      if (tokens <= variant.tokens && CanLookUp(gpu, sc, dims, variant))
        return with_quantizer(PlanTable(gpu, sc, shape, dims, variant));
    }
    for (const TableVariant& variant : {kSixteen, kEight, kEightSmall}) {
      if (!CanLookUp(gpu, sc, dims, variant)) continue;
      if (tokens > variant.tokens * MostTableLaunches(gpu, sc, variant, tokens)) break;
      return with_quantizer(PlanTable(gpu, sc, shape, dims, variant));
    }
  }
  if (tokens >= kFirstTableTokens && PlanBatchWgmma(gpu, sc, shape, dims, &plan)) return with_quantizer(plan);
  if (CanDecode(sc, dims, tokens)) {
    return with_quantizer(PlanDecode(gpu, shape, dims, false, tokens == 1 && sc.scope_rows == 1));
  }
  if (!CanPrefill(sc)) return with_quantizer(LinearPlan{});
  plan = CanPrefillWgmma(gpu, sc) ? PlanScPrefill(gpu, sc, shape) : PlanScTiles(gpu, sc, shape);
  // The rank table of hundreds of masks in two halves may not fit shared memory.
  if (!Fits(gpu, plan.shared_bytes, 0)) return with_quantizer(LinearPlan{});
  const bool streams = plan.route == LinearRoute::kScPrompt || plan.tile_form == TileForm::kStreams;
  if (streams && MakesStreams(gpu, sc, dims, tokens, pass.aligned)) plan.quantizer = ScQuantizer::kStreams;
  return plan;
}

int64_t ScLinearScratchBytes(const GpuTraits& gpu, const ScTraits& sc, int64_t in_features,
                             std::span<const int64_t> out_features, int64_t max_tokens) {
  int64_t most = 0;
  const auto see = [&](int64_t tokens) {
    for (size_t first = 0; first < out_features.size(); first += kMaxScTasks) {
      const auto tasks = out_features.subspan(first, std::min<size_t>(kMaxScTasks, out_features.size() - first));
      most = std::max(most, PlanScLinear(gpu, sc, {tokens, in_features, tasks}).scratch_bytes());
    }
  };
  // Beyond kMaxBatchWgmmaTokens more tokens take more, so the largest number is enough.
  for (int64_t tokens = 1; tokens <= std::min<int64_t>(max_tokens, kMaxBatchWgmmaTokens); ++tokens) see(tokens);
  see(max_tokens);
  return most;
}

}  // namespace stoch
