// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tiles/streams.cuh"
#include "kernels/cuda/sc/tiles/tiles.h"

namespace stoch::cuda {
namespace {

using tiles::TileArgs;

template <typename S, int kWords, int kHalves, bool kTable>
__global__ void __launch_bounds__(S::kThreads, 1) ScTilesKernel(const __grid_constant__ TileArgs args) {
  using Body = tiles::StreamBody<S, kWords, kHalves, kTable>;
  using Copier = tiles::StageCopier<S, Body::kOperandBytes>;
  extern __shared__ __align__(256) uint8_t memory[];  // the table of ranks, then the ring
  constexpr int kRing = S::kStages * Copier::kBytes;
  uint8_t* ring = memory;
  StartNext();
  if constexpr (kTable) {
    FillRankTable<kWords, kHalves>(args.ranks, args.masks, args.levels, memory);
    ring += kHalves * max(args.masks, 16) * 128;
  }
  static_assert(kRing + (kTable ? kHalves * 64 * 128 : 0) <= 99 * 1024);
  Body body{args, SharedAddress(memory)};
  tiles::RunTiles<S>(args, body, ring);
  if constexpr (S::kPartials) {
    WaitForAllCopies();
    __syncthreads();  // the ring is free
    ReduceManyTokens<S::kWarps, static_cast<int>(kTileCombineBytes)>(args.outputs, memory,
                                                                     [&] { args.barrier.Wait(); });
  }
}

using Kernel = void (*)(TileArgs);

template <int kTokens, bool kPartials>
Kernel Choose(int words, int halves, bool table) {
  constexpr int kWarps = kTokens == kTileTokensNarrow ? 16 : 8;
  using Direct = tiles::Shape<kTokens, kWarps, kTileStages, kPartials>;
  using Looked = tiles::Shape<kTokens, kWarps, kTileTableStages, kPartials>;
  if (!table) return ScTilesKernel<Direct, 4, 1, false>;
  if (halves == 2) return words == 3 ? ScTilesKernel<Looked, 3, 2, true> : ScTilesKernel<Looked, 4, 2, true>;
  switch (words) {
    case 1: return ScTilesKernel<Looked, 1, 1, true>;
    case 2: return ScTilesKernel<Looked, 2, 1, true>;
    case 3: return ScTilesKernel<Looked, 3, 1, true>;
    default: return ScTilesKernel<Looked, 4, 1, true>;
  }
}

}  // namespace

void LaunchScTiles(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                   const SiteReporter& reporter, const ScLinearTask* tasks, int count, const ScFloatRows* rows) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1);
  const bool split = plan.route == LinearRoute::kScTilesSplit;
  const bool narrow = plan.tile_tokens == kTileTokensNarrow;
  const bool table = tables.stoc_len != 128 || !tables.direct_ranks;
  const int threads = narrow ? 512 : 256;  // and weight rows of a tile
  Scratch scratch(ctx.workspace);
  TileArgs args;
  ScStreams& streams = args.streams;
  static_cast<StreamShape&>(streams) = MakeStreamShape(a.dims, a.tokens, plan.tile_tokens, tables.stoc_len);
  streams.data = scratch.Take<uint8_t>(streams.bytes());
  streams.scales = scratch.Take<float>(streams.scale_count());
  args.outputs = MakeBatchOutputs(tables, a, reporter, tasks, count, threads,
                                  streams.token_tiles * (plan.tile_tokens / kTileTokens));
  args.outputs.reduced = BlockShare::Of(args.outputs.reduce_units(), plan.blocks);
  args.row_tiles = args.outputs.groups / (threads / kGroupRows);
  if (table) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;
  if (split) {
    args.outputs.partials = scratch.Take<uint8_t>(args.outputs.partial_bytes());
    args.barrier = ctx.grid_barrier();
  }
  if (rows != nullptr) {
    LaunchStreamRows(ctx, scratch, tables, a.dims, rows->source, streams, nullptr, 0, rows->reporter);
  } else {
    LaunchExpandStreams(ctx, tables, a, streams, nullptr, 0);
  }
  const Kernel kernel = !split   ? Choose<kTileTokensWide, false>(streams.words, streams.halves, table)
                        : narrow ? Choose<kTileTokensNarrow, true>(streams.words, streams.halves, table)
                                 : Choose<kTileTokensWide, true>(streams.words, streams.halves, table);
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  AllowShared(ctx, kernel, shared);
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(threads)), shared,
                   args);
}

}  // namespace stoch::cuda
