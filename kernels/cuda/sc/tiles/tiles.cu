// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tensor_core/streams.h"
#include "kernels/cuda/sc/tiles/closed_form.cuh"
#include "kernels/cuda/sc/tiles/closed_operands.h"
#include "kernels/cuda/sc/tiles/streams.cuh"
#include "kernels/cuda/sc/tiles/tiles.h"

namespace stoch::cuda {
namespace {

using tiles::Kernel;
using tiles::TileArgs;
using tiles::TilesKernel;

// Form of TilesKernel: streams of 128 cycles whose ranks are DirectRanks; no table.
template <typename S>
struct DirectForm {
  using Shape = S;
  __device__ static uint8_t* Fill(const TileArgs&, uint8_t* memory) { return memory; }
  __device__ static auto MakeBody(const TileArgs& args, uint8_t* memory) {
    return tiles::StreamBody<S, 4, 1, false>{args, SharedAddress(memory)};
  }
};

// Form of TilesKernel: streams whose ranks of weight levels come from a table in shared memory.
template <typename S, int kWords, int kHalves>
struct RankForm {
  using Shape = S;
  __device__ static uint8_t* Fill(const TileArgs& args, uint8_t* memory) {
    FillRankTable<kWords, kHalves>(args.ranks, args.masks, args.levels, memory);
    return memory + kHalves * max(args.masks, 16) * 128;
  }
  __device__ static auto MakeBody(const TileArgs& args, uint8_t* memory) {
    return tiles::StreamBody<S, kWords, kHalves, true>{args, SharedAddress(memory)};
  }
};

// Form of TilesKernel: the closed form (closed_form.cuh), with its word table in shared memory.
template <typename S>
struct ClosedForm {
  using Shape = S;
  __device__ static uint8_t* Fill(const TileArgs&, uint8_t* memory) {
    tiles::FillWordTable(reinterpret_cast<uint32_t*>(memory));
    return memory + tiles::kWordTableBytes;
  }
  __device__ static auto MakeBody(const TileArgs&, uint8_t* memory) {
    return tiles::ClosedFormBody<S>{SharedAddress(memory) + threadIdx.x % tiles::kWordCopies * 4};
  }
};

// The kernel for tiles of kTokens tokens. words, halves: sizes of the streams; table: ranks come from a table.
template <int kTokens, bool kPartials>
Kernel KernelOf(TileForm form, int words, int halves, bool table) {
  constexpr int kWarps = kTokens == kTileTokensNarrow ? 16 : 8;
  using Direct = tiles::Shape<kTokens, kWarps, kTileStages, kPartials>;
  using Looked = tiles::Shape<kTokens, kWarps, kTileTableStages, kPartials>;
  using Formed = tiles::Shape<kTokens, kWarps, kTileFormStages, kPartials>;
  if (form == TileForm::kClosed) return TilesKernel<ClosedForm<Formed>>;
  if (form == TileForm::kInt8) return tiles::Int8Kernel(kTokens, kPartials);
  if (!table) return TilesKernel<DirectForm<Direct>>;
  if (halves == 2) return words == 3 ? TilesKernel<RankForm<Looked, 3, 2>> : TilesKernel<RankForm<Looked, 4, 2>>;
  switch (words) {
    case 1: return TilesKernel<RankForm<Looked, 1, 1>>;
    case 2: return TilesKernel<RankForm<Looked, 2, 1>>;
    case 3: return TilesKernel<RankForm<Looked, 3, 1>>;
    default: return TilesKernel<RankForm<Looked, 4, 1>>;
  }
}

}  // namespace

void LaunchScTiles(DeviceContext& ctx, const LinearPlan& plan, const ScOperator& op, const ScActivationView& a,
                   const SiteReporter& reporter, const ScLinearTask* tasks, int count, const ScFloatRows* rows) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1);
  const ScTables& tables = ctx.tables.Get(op);
  const bool split = plan.route == LinearRoute::kScTilesSplit;
  const bool narrow = plan.tile_tokens == kTileTokensNarrow;
  const TileForm form = plan.tile_form;
  const bool formed = form != TileForm::kStreams;
  const bool table = !formed && (tables.stoc_len != 128 || !tables.direct_ranks);
  const int threads = narrow ? 512 : 256;  // threads of a block, one for each weight row of a tile
  const StreamShape shape = MakeStreamShape(a.dims, a.tokens, plan.tile_tokens, tables.stoc_len);
  Scratch scratch(ctx.workspace);
  const int64_t operand_bytes = formed ? TileOperandBytes(form, a.dims, a.tokens, plan.tile_tokens) : shape.bytes();
  auto* const operands = scratch.Take<uint8_t>(operand_bytes);
  auto* const scales = scratch.Take<float>(shape.scale_count());
  TileArgs args;
  args.outputs = MakeBatchOutputs(tables, a, reporter, tasks, count, threads,
                                  shape.token_tiles * (plan.tile_tokens / kTileTokens));
  args.outputs.reduced = BlockShare::Of(args.outputs.reduce_units(), plan.blocks);
  args.operands = operands;
  args.tile_bytes = operand_bytes / shape.token_tiles;
  args.chunk_bytes =
      formed ? args.tile_bytes / shape.chunks : int64_t{shape.blocks_per_chunk} * shape.halves * shape.block_bytes();
  args.scales = scales;
  args.scale_stride = shape.tokens_padded();
  args.row_tiles = args.outputs.groups / (threads / kGroupRows);
  args.token_tiles = shape.token_tiles;
  args.chunks = shape.chunks;
  args.dim_blocks = shape.dim_blocks;
  args.blocks_per_chunk = shape.blocks_per_chunk;
  if (table) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;
  if (split) {
    args.outputs.partials = scratch.Take<uint8_t>(args.outputs.partial_bytes());
    args.barrier = ctx.grid_barrier();
  }
  ScStreams streams;
  static_cast<StreamShape&>(streams) = shape;
  streams.data = operands;
  streams.scales = scales;
  if (form == TileForm::kInt8) {
    LaunchInt8Operands(ctx, tables, a, plan.tile_tokens, {operands, scales, args.scale_stride});
  } else if (form == TileForm::kClosed) {
    LaunchClosedOperands(ctx, tables, a, plan.tile_tokens, {operands, scales, args.scale_stride});
  } else if (rows != nullptr) {
    LaunchStreamRows(ctx, scratch, tables, a.dims, rows->source, streams, nullptr, 0, rows->reporter);
  } else {
    LaunchExpandStreams(ctx, tables, a, streams, nullptr, 0);
  }
  const Kernel kernel = !split   ? KernelOf<kTileTokensWide, false>(form, shape.words, shape.halves, table)
                        : narrow ? KernelOf<kTileTokensNarrow, true>(form, shape.words, shape.halves, table)
                                 : KernelOf<kTileTokensWide, true>(form, shape.words, shape.halves, table);
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  AllowShared(ctx, kernel, shared);
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(threads)), shared,
                   args);
}

}  // namespace stoch::cuda
