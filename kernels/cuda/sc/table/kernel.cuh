// SPDX-License-Identifier: Apache-2.0
// The kernel template of table.cu and few.cu, where one look-up serves a weight for all tokens: the table of a part of
// a chunk's dimensions stays in shared memory while weights stream past it (Ring).
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/table/stage.cuh"
#include "kernels/cuda/sc/table/table.h"
#include "kernels/cuda/sc/table/weights.cuh"

namespace stoch::cuda::batch_table {

// The index, within its unit, of a pair of weight tiles, as a type.
template <int kQ>
using Pair = std::integral_constant<int, kQ>;

// Replaces RowQuantizer in kernels that always read codes (kMixed); does nothing.
struct NoQuantizer {
  __device__ NoQuantizer(const TableArgs& /*args*/, int /*chunk*/, int /*warp*/) {}
  __device__ void Load(uint8_t* /*table*/) {}
  __device__ void Next(int /*chunk*/) {}
  __device__ void StageChunk(int64_t /*chunk*/, StagedCodes /*codes*/) {}
};

// Computes an SC linear of few tokens by table look-ups. A persistent kernel of at most one block per SM. A unit is one
// part of a chunk for kParts blocks of kUnitRows weight rows, a warp's work at a time (weights.cuh). Units are numbered
// part by part, and each block takes a contiguous range, so that it builds few tables. Sums of parts go to device
// memory as split-K partials; after a grid barrier all blocks reduce the partials to outputs (sc/batch/outputs.cuh).
//
// Alternatives that lost: docs/tuning/batch.md#2-to-16-tokens.
//
// Table is a class with the look-ups of one lane. It has the constants kTokens, kTiles (tiles of 8 tokens), kParts
// (parts of a chunk), kTableBytes, kRingPairs (Ring), kFourTokens (BatchOutputs), kAtOnce (ReduceStage) and kMixed
// (tokens have stream lengths of their own, and `a` has codes), the types Sums and Shared, and
//   Shared              static shared memory: codes[kTokens][kWords], with kMixed slots[kTokens], and more
//   Init(shared)        static; initializes `shared` by all threads, first of all; visible from Begin on
//   Table(shared, table)
//   Build(args, part)   builds the table of a part of the staged codes, by all threads
//   Begin()             loads what else depends on the part; after a barrier
//   Start(sums)         the sums' initial values for one block of rows
//   AddPair<q>(codes, sums)   adds the look-ups of pair q of a unit's tiles
//   Store(to, stride, sums)   stores the partials of one block of rows; `to` is this lane's place in the item of
//                             the first group, `stride` the step from a group's item to the next group's
template <typename Table>
__global__ void __launch_bounds__(kThreads, 1) ScBatchTableKernel(const __grid_constant__ ArgsOf<Table::kMixed> args) {
  constexpr int kParts = Table::kParts;
  constexpr int kRingPairs = Table::kRingPairs;
  extern __shared__ __align__(128) uint8_t table[];
  __shared__ __align__(16) typename Table::Shared shared;
  Table::Init(shared);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // Broadcast from one lane, so that the compiler knows `warp` to be uniform and keeps addresses in uniform registers.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const BatchOutputs& outputs = args.outputs;
  const int row_blocks = outputs.groups / (kGroups * kParts);
  const int begin = args.units.first();
  const int end = args.units.end();
  const int first_part = begin / row_blocks;
  const auto group_stride = static_cast<uint32_t>(Table::kFourTokens ? kWarp / 2 : outputs.tiles * kWarp);
  const uint32_t block_stride = kGroups * group_stride;

  StartNext();
  int unit = begin + warp;
  Walk<kParts> ahead(args, first_part, unit - first_part * row_blocks, unit, end, lane);
  const Ring<kParts, kRingPairs> ring(table + Table::kTableBytes, warp, lane);
  const bool quantizes = !Table::kMixed && outputs.a.codes == nullptr;
  using Quantizer = std::conditional_t<Table::kMixed, NoQuantizer, RowQuantizer<Table::kTokens>>;
  Quantizer quantizer(args, first_part >> (outputs.parts - 1), warp);
  Table my(shared, table);
  WaitForPrevious();
  if (quantizes) quantizer.Load(table);
  // Weights are loaded only now, and at first only two pairs: loads return in order, and the block waits for its
  // activations (to load a unit's weights before the activations costs 2 % of a step).
  ring.template Ask<0>(args, ahead.unit);
  ring.template Ask<1>(args, ahead.unit);
  int first_unit = first_part * row_blocks;
  for (int part = first_part; first_unit < end; ++part, first_unit += row_blocks) {
    const int chunk = part >> (outputs.parts - 1);    // part / parts, as parts is 1 or 2
    const int of_chunk = part & (outputs.parts - 1);  // index of the part in its chunk
    __syncthreads();
    if (part == first_part || of_chunk == 0) {
      if (quantizes) {
        if (part > first_part) quantizer.Next(chunk);
        quantizer.StageChunk(chunk, shared.codes);
      } else if constexpr (Table::kMixed) {
        StageCodesAndSlots<Table::kTokens>(args, chunk, shared.codes, shared.slots);
      } else {
        StageCodes<Table::kTokens>(args, chunk, shared.codes);
      }
      __syncthreads();
    }
    my.Build(args, of_chunk);
    if (kRingPairs == kUnitPairs && part == first_part) {
      ring.template Ask<2>(args, ahead.unit);
      ring.template Ask<3>(args, ahead.unit);
    }
    __syncthreads();
    my.Begin();
    // Partials are ordered by part as units are, so the unit's number gives this lane's place.
    uint2* to = static_cast<uint2*>(outputs.partials) +
                (uint64_t{static_cast<uint32_t>(unit)} * (kParts * block_stride) + static_cast<uint32_t>(lane));
    const int stop = min(end, first_unit + row_blocks);
    for (; unit < stop; unit += kWarps, to += kWarps * kParts * block_stride) {
      if (lane == 0) PrefetchL2Line(ahead.unit.scales);  // the reduction reads these scales
      Codes codes;
      typename Table::Sums sums;
      my.Start(sums);
      const auto add = [&](auto pair) {
        ring.template Take<pair>(codes);
        if constexpr (pair + kRingPairs == kUnitPairs) ahead.Step(args);  // Ask is now of the next unit
        ring.template Ask<(pair + kRingPairs) % kUnitPairs>(args, ahead.unit);
        my.template AddPair<pair>(codes, sums);
      };
      add(Pair<0>());
      add(Pair<1>());
      if constexpr (kParts == 2) {
        my.Store(to, group_stride, sums);
        my.Start(sums);
      }
      add(Pair<2>());
      add(Pair<3>());
      my.Store(to + (kParts - 1) * block_stride, group_stride, sums);
    }
  }
  WaitForCopies<0>();
  const auto sync = [] { __syncthreads(); };
  const unsigned arrived = args.barrier.Arrive(sync);
  using Stage = ReduceStage<false, Table::kFourTokens, kParts, Table::kAtOnce, Table::kTiles, Table::kMixed>;
  constexpr int kReduceBytes =
      Table::kTableBytes + (Table::kTableBytes < kBatchTableBytes ? kRingBytes<kRingPairs> : 0);
  ReduceChunks<Stage, kWarps, kReduceBytes>(outputs, table, [&] { args.barrier.Await(arrived, sync); });
}

// Dynamic shared memory of a block: the table, then the rings of all warps.
template <typename Table>
inline constexpr int kSharedBytes = Table::kTableBytes + kRingBytes<Table::kRingPairs>;

// Sets the arguments that all table kernels have in common, except the split of work over blocks, and takes memory for
// the partials from `scratch`. Requires: a.dims and a.tokens are set.
template <typename Table>
void FillArgs(DeviceContext& ctx, Scratch& scratch, const ScTables& tables, const ScActivationView& a,
              const SiteReporter& reporter, const ScLinearTask* tasks, int count, TableArgs& args) {
  args.outputs = MakeBatchOutputs(tables, a, reporter, tasks, count, kUnitRows * Table::kParts, Table::kTiles);
  args.outputs.four_tokens = Table::kFourTokens;
  if (args.outputs.dims.chunk_stride > kChunkDims / Table::kParts) args.outputs.parts = Table::kParts;
  args.quarters = tables.quarters;
  args.factors = tables.factors;
  args.residuals = tables.residuals;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.barrier = ctx.grid_barrier();
  args.outputs.partials = scratch.Take<uint8_t>(args.outputs.partial_bytes());
}

// Splits the work over plan.blocks blocks and launches the kernel.
template <typename Table>
void LaunchArgs(DeviceContext& ctx, const LinearPlan& plan, ArgsOf<Table::kMixed>& args) {
  static_assert(kRingBytes<1> == kBatchPairBytes);
  STOCH_CHECK(plan.shared_bytes == kSharedBytes<Table> && args.outputs.a.tokens <= Table::kTokens);
  AllowShared(ctx, ScBatchTableKernel<Table>, size_t{kSharedBytes<Table>});
  const int64_t parts = args.outputs.dims.chunks * args.outputs.parts;
  const int row_blocks = args.outputs.groups / (kGroups * Table::kParts);
  const int blocks = plan.blocks;
  args.units = BlockShare::Of(parts * row_blocks, blocks);
  // The last of several launches may have a tile without tokens, whose outputs nobody stores.
  args.outputs.reduced = BlockShare::Of(args.outputs.reduce_units(Table::kTiles), blocks);
  LaunchOverlapped(ctx, ScBatchTableKernel<Table>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                   size_t{kSharedBytes<Table>}, args);
}

// Implements LaunchScBatchFew or LaunchScBatchTable (table.h) with the kernel of Table, by one launch for every kTokens
// tokens.
template <typename Table>
void LaunchTable(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& all,
                 const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks);
  // If codes are given, one launch must take all tokens: the scales are [chunks][tokens], which cannot be cut by
  // tokens.
  STOCH_CHECK(all.tokens <= Table::kTokens || all.codes == nullptr);
  std::array<ScLinearTask, kMaxScTasks> of_rows;
  for (int64_t first = 0; first < all.tokens; first += Table::kTokens) {
    Scratch scratch(ctx.workspace);
    TableArgs args;
    ScActivationView a = all;
    a.tokens = std::min<int64_t>(Table::kTokens, all.tokens - first);
    if (a.codes == nullptr) {
      a.dims = tasks[0].weight.dims;
      args.scales = scratch.Take<float>(a.tokens * a.dims.chunks);
      a.scales = args.scales;
      args.source = source;
      args.source.x += first * source.x_stride;
      if (source.x2 != nullptr) args.source.x2 += first * source.x2_stride;
      args.q_max = tables.q_max;
    }
    for (int i = 0; i < count; ++i) {
      of_rows[static_cast<size_t>(i)] = tasks[i];
      of_rows[static_cast<size_t>(i)].out.data += first * tasks[i].out.stride;
    }
    FillArgs<Table>(ctx, scratch, tables, a, reporter, of_rows.data(), count, args);
    LaunchArgs<Table>(ctx, plan, args);
  }
}

// Implements LaunchScBatchFewMixed or LaunchScBatchTableMixed (table.h) with the kernel of Table.
template <typename Table>
void LaunchMixedTable(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const LookupLengths& lengths,
                      const ScActivationView& a, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.codes != nullptr);
  Scratch scratch(ctx.workspace);
  MixedTableArgs args;
  args.lengths = lengths;
  args.gains = scratch.Take<float>(a.tokens * a.dims.chunks);
  FillArgs<Table>(ctx, scratch, tables, a, reporter, tasks, count, args);
  args.outputs.gains = args.gains;
  LaunchArgs<Table>(ctx, plan, args);
}

}  // namespace stoch::cuda::batch_table
