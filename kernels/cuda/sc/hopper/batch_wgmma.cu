// SPDX-License-Identifier: Apache-2.0
// SC linears of 17 to 256 tokens on Hopper's binary wgmma: the operands of prefill_wgmma.cu in tiles of 16 to 96
// tokens, with the dimensions shared out over blocks chunk by chunk.
//
// Four warpgroups of 64 rows make thermometers in registers and multiply them with streams that one thread copies into
// a ring, up to 64 dimensions a stage; the weights' codes come straight from memory, a stage ahead. Any block can do
// any chunk of any 256 rows, so that all shapes fill the GPU; split-K partials are scaled and added at the end
// (sc/batch/outputs.cuh), or by the blocks that own a tile where there are nearly as many tiles as SMs.
//
// Bound by instructions and tensor cores taking turns: accumulators and operands pass the registers, so
// that m64n32k256, 16 clocks, leaves other instructions half of them (measured, whatever the number of warps). Hence
// every instruction of a block of 16 dimensions counts: the pairs made by shifts and those looked up are balanced,
// stages are long, and no thread decodes units or scales twice.
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

constexpr int kReduceBytes = 128 * 1024;

static_assert(kRows == kBatchRows && kMaxStages == kBatchMaxStages && kRingHeader == kRingHeaderBytes);
static_assert(DeviceContext::kFlags == kBlockFlags);
static_assert(kReduceBytes == kBatchCombineBytes && batch::kThermometerBytes == kBatchThermometerBytes);

template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners, bool kMixed>
__global__ void __launch_bounds__(kThreads, 1) ScBatchWgmmaKernel(const __grid_constant__ BatchArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using G = Geometry<kWords, kHalves, kTokens>;
  extern __shared__ __align__(256) uint8_t memory[];
  const Shared shared{SharedAddressInRegister(memory), args.stages};
  uint8_t* rank_table = memory + shared.rank_table<G>();
  if constexpr (kTable) {
    static_assert(G::kStageBytes % kRingHeader == 0);  // TableRanks
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
  // From one lane, so that the compiler knows roles, and all that loops over stages, to be the same across a warp.
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
  __trap();  // chosen only where GpuTraits has wgmma
#endif
}

using Kernel = void (*)(BatchArgs);
struct Choice {
  Kernel kernel = nullptr;
  int64_t stage_bytes = 0;
};
template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners = false, bool kMixed = false>
Choice Make() {
  return {ScBatchWgmmaKernel<kWords, kHalves, kTable, kTokens, kOwners, kMixed>,
          Geometry<kWords, kHalves, kTokens>::kStageBytes};
}
template <int kTokens>
Choice UsualKernel(bool owners) {
  return owners ? Make<4, 1, false, kTokens, true>() : Make<4, 1, false, kTokens>();
}
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
template <int kTokens>
Choice MixedRowsKernel(bool owners) {
  return owners ? Make<4, 1, false, kTokens, true, true>() : Make<4, 1, false, kTokens, false, true>();
}
// The sizes of PlanScLinear.
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
  // The operator that most use: halved, 128 cycles. The others have fewer kernels.
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
