// SPDX-License-Identifier: Apache-2.0
// SC linears of 17 to 256 tokens on Hopper's binary wgmma, in tiles of 256 weight rows x 16 to 96 tokens, with the
// chunks of a tile divided over blocks (split-K).
//
// A block is warp-specialized: one producer thread copies streams of activations into a ring in shared memory, up to 64
// dimensions a stage, and four consumer warpgroups of 64 weight rows each make thermometers in registers and multiply.
// Consumers load the weights' codes from global memory, a stage ahead. Any block can take any chunk of any tile, so
// that all shapes fill the GPU. Split-K partials are reduced after a grid barrier (sc/batch/outputs.cuh), or, if there
// are nearly as many tiles as SMs, by the blocks that own the tiles.
//
// Instructions and tensor cores take turns, which bounds the kernel: accumulators and operands pass through the
// register file, so an m64n32k256, which takes 16 clocks, leaves 8 of them to other instructions (measured, for any
// number of warps). So every instruction of a block of 16 dimensions counts: the work is balanced between thermometers
// made by shifts and thermometers looked up, stages are long, and no thread decodes units or scales twice.
// Alternatives that lost: docs/tuning/batch.md#17-to-256-tokens.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/hopper/batch_roles.cuh"
#include "kernels/cuda/sc/hopper/batch_wgmma.h"
#include "kernels/cuda/sc/hopper/prefill.h"
#include "kernels/plan/linear/mixed.h"
#include "kernels/plan/sc_traits.h"

namespace stoch::cuda {
namespace {

using batch::BatchArgs;
using batch::Consumer;
using batch::Geometry;
using batch::kConsumerRegisters;
using batch::kConsumers;
using batch::kMaxStages;
using batch::kProducerRegisters;
using batch::kRingHeader;
using batch::kRows;
using batch::kThreads;
using batch::Produce;
using batch::Shared;

constexpr int kReduceBytes = 128 * 1024;  // shared memory of the split-K reduction, after the ring's barriers

static_assert(kRows == kBatchRows && kMaxStages == kBatchMaxStages && kRingHeader == kRingHeaderBytes);
static_assert(DeviceContext::kFlags == kBlockFlags);
static_assert(kReduceBytes == kBatchCombineBytes && batch::kThermometerBytes == kBatchThermometerBytes);

// Computes an SC linear as described at the top of this file; a persistent kernel of at most one block per SM. kWords,
// kHalves: words of a half stream, halves of a stream. kTable: ranks of weights (ones of their streams) come from a
// table in shared memory; else the formula DirectRanks gives them, and thermometers are partly looked up. kTokens:
// tokens of a tile. kOwners: BatchArgs::owners > 0; else blocks reduce partials after a grid barrier. kMixed: every
// (chunk, token) has a gain of its own.
template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners, bool kMixed>
__global__ void __launch_bounds__(kThreads, 1) ScBatchWgmmaKernel(const __grid_constant__ BatchArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using G = Geometry<kWords, kHalves, kTokens>;
  extern __shared__ __align__(256) uint8_t memory[];
  const Shared shared{SharedAddressInRegister(memory), args.stages};
  uint8_t* rank_table = memory + shared.rank_table<G>();
  if constexpr (kTable) {
    static_assert(G::kStageBytes % kRingHeader == 0);  // TableRanks needs a table aligned to 256 bytes
    FillRankTable<kWords, kHalves>(args.ranks, args.masks, args.levels, rank_table);
  } else {
    static_assert(kWords == 4 && kHalves == 1);
    batch::FillThermometers(rank_table);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; ++i) {
      BarrierInit(shared.full(i), 1);
      BarrierInit(shared.empty(i), kConsumers / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  StartNext();
  // Broadcast from one lane, so that the compiler knows `warp`, and with it the role and the loops over stages, to be
  // uniform in a warp.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kProducerRegisters));
    if (threadIdx.x == kConsumers) Produce<G>(args, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
    Consumer<kWords, kHalves, kTable, kTokens, kOwners, kMixed> consumer{
        args, shared,
        SharedAddressInRegister(rank_table) +
            (kTable ? threadIdx.x % 4 * 4 * 128 : threadIdx.x % batch::kThermometerCopies * 16),
        warp, args.minus_one};
    consumer.Consume();
    if constexpr (!kOwners) {
      const auto sync = [] { NamedWait(1, kConsumers); };
      const unsigned arrived = args.barrier.Arrive(sync);
      const auto await = [&] { args.barrier.Await(arrived, sync); };
      if constexpr (kMixed) {
        ReduceChunks<ReduceStage<false, false, 1, 2, 0, true>, kConsumers / 32, kReduceBytes>(
            args.outputs, memory + kRingHeader, await);
      } else {
        ReduceManyTokens<kConsumers / 32, kReduceBytes>(args.outputs, memory + kRingHeader, await);
      }
    }
  }
#else
  __trap();  // unreachable: plans choose this kernel only for GPUs with wgmma
#endif
}

using Kernel = void (*)(BatchArgs);
// A kernel and the bytes of one stage of its ring.
struct Choice {
  Kernel kernel = nullptr;
  int64_t stage_bytes = 0;
};
template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners = false, bool kMixed = false>
Choice Make() {
  return {ScBatchWgmmaKernel<kWords, kHalves, kTable, kTokens, kOwners, kMixed>,
          Geometry<kWords, kHalves, kTokens>::kStageBytes};
}
// The kernel for streams of 128 cycles with direct ranks.
template <int kTokens>
Choice UsualKernel(bool owners) {
  return owners ? Make<4, 1, false, kTokens, true>() : Make<4, 1, false, kTokens>();
}
// The kernel for all other streams, whose ranks come from a table.
template <int kTokens>
Choice RankTableKernel(int words, int halves) {
  if (halves == 2) return words == 3 ? Make<3, 2, true, kTokens>() : Make<4, 2, true, kTokens>();
  switch (words) {
    case 1: return Make<1, 1, true, kTokens>();
    case 2: return Make<2, 1, true, kTokens>();
    case 3: return Make<3, 1, true, kTokens>();
    default: return Make<4, 1, true, kTokens>();
  }
}
// The kernel for tokens with stream lengths of their own, in streams of 128 cycles with direct ranks.
template <int kTokens>
Choice MixedRowsKernel(bool owners) {
  return owners ? Make<4, 1, false, kTokens, true, true>() : Make<4, 1, false, kTokens, false, true>();
}
// The kernel for the tile sizes that PlanScLinear chooses. usual: 128 cycles with direct ranks.
Choice KernelOf(const ScStreams& streams, bool usual, bool owners) {
  switch (streams.tile_tokens) {
    case 16: return usual ? UsualKernel<16>(owners) : RankTableKernel<16>(streams.words, streams.halves);
    case 24: return UsualKernel<24>(owners);
    case 32: return usual ? UsualKernel<32>(owners) : RankTableKernel<32>(streams.words, streams.halves);
    case 48: return UsualKernel<48>(owners);
    case 96: return Make<4, 1, false, 96>();
    default: return usual ? UsualKernel<64>(owners) : RankTableKernel<64>(streams.words, streams.halves);
  }
}

}  // namespace

void LaunchScBatchWgmma(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const SiteReporter& reporter, const ScLinearTask* tasks, int count, const RowStreams* rows) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1 && a.tokens <= kMaxBatchWgmmaTokens);
  // The most common operator (cycle halving, 128 cycles) has kernels of its own; all other operators use the kernels
  // with a rank table.
  const bool usual = tables.stoc_len == 128 && tables.direct_ranks;
  Scratch scratch(ctx.workspace);
  BatchArgs args;
  ScStreams& streams = args.streams;
  static_cast<StreamShape&>(streams) = MakeStreamShape(a.dims, a.tokens, plan.tile_tokens, tables.stoc_len);
  streams.data = scratch.Take<uint8_t>(streams.bytes());
  streams.scales = scratch.Take<float>(streams.scale_count());
  args.outputs = MakeBatchOutputs(tables, a, reporter, tasks, count, kRows,
                                  streams.token_tiles * (plan.tile_tokens / kTileTokens));
  if (rows != nullptr) {
    STOCH_CHECK(usual && !args.outputs.wide && a.tokens <= kMaxMixedBatchTokens);
    streams.gains = scratch.Take<float>(streams.scale_count());
    args.outputs.a.scales = streams.scales;
    args.outputs.gains = streams.gains;
    args.outputs.scale_stride = streams.tokens_padded();
  }
  if (!usual) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.barrier = ctx.grid_barrier();

  const BatchShares& shares = plan.shares;
  const bool owners = shares.owners > 0;
  args.outputs.reduced = BlockShare::Of(args.outputs.reduce_units(), shares.blocks);
  args.owners = shares.owners;
  args.helped = shares.helped;
  if (shares.helped > 0) args.flags = ctx.flags();
  if (shares.stored_chunks > 0) {
    args.outputs.partials = scratch.Take<uint8_t>(args.outputs.partial_bytes() / streams.chunks * shares.stored_chunks);
  }
  const Choice choice = rows == nullptr             ? KernelOf(streams, usual, owners)
                        : streams.tile_tokens == 24 ? MixedRowsKernel<24>(owners)
                                                    : MixedRowsKernel<32>(owners);
  STOCH_CHECK(rows == nullptr || streams.tile_tokens == 24 || streams.tile_tokens == 32);
  args.stages = plan.stages;
  STOCH_CHECK(plan.shared_bytes >= kRingHeader + args.stages * choice.stage_bytes);
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  AllowShared(ctx, choice.kernel, shared);
  LaunchExpandStreams(ctx, tables, a, streams, nullptr, 0, rows);
  LaunchOverlapped(ctx, choice.kernel, dim3(static_cast<unsigned>(shares.blocks)), dim3(kThreads), shared, args);
}

}  // namespace stoch::cuda
