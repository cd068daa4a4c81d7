// SC linears of 17 to 256 tokens on Hopper's binary wgmma: the operands of prefill_wgmma.cu in tiles of 16 to 96
// tokens, with the dimensions shared out over blocks chunk by chunk.
//
// Four warpgroups of 64 rows make thermometers in registers and multiply them with streams that one thread copies into
// a ring, up to 64 dimensions a stage; the weights' codes come straight from memory, a stage ahead. Any block can do
// any chunk of any 256 rows, so that all shapes fill the GPU; the sums of chunks are scaled and added at the end
// (sc/batch/outputs.cuh), or by the blocks that own a tile where there are nearly as many tiles as multiprocessors.
//
// What bounds it is that instructions and tensor cores take turns: accumulators and operands pass the registers, so
// that m64n32k256, 16 clocks, leaves other instructions half of them (measured, whatever the number of warps). Hence
// every instruction of a block of 16 dimensions counts: the pairs made by shifts and those looked up are balanced,
// stages are long, and no thread decodes units or scales twice.
//
// Tried before (32 tokens, 8B):
// - Clusters that share a tile's chunks and add products up through each other's shared memory. It moves fewer bytes,
//   but a Hopper's parts have room for few large clusters, and no shape of an 8B model filled more than 85 % of it.
// - Thermometers looked up word by word, straight into operands: a sixth fewer instructions, but 1 % more time for two
//   pairs of four, 4 % for three and 10 % for all. A wgmma and the 16 bytes a lane that feed it take 28 clocks, not 16:
//   both read shared memory. By ldmatrix, which leaves operands in order without a move: 7, 7 and 17 % more.
// - Quantizing and expanding activations in one kernel: 4 % more time with stores 16 bytes apart, and 3 % where
//   they lie together and every block quantizes its whole chunk again.
// - An eighth fewer instructions around the products (codes loaded in place of those used up, an owner's scales with
//   its stages, stages handed back without waiting for their last product): the same time. Two groups of wgmma on their
//   way at a time: 14 % more; warpgroups a quarter to three quarters of a stage apart: 1 to 3 % more.
// - Bit planes of 32 codes, from which one instruction makes a word of any threshold: 3 % more time for the loop alone,
//   as planes have to be made of bytes; 6 % less if they were stored.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/format/direct_ranks.h"
#include "kernels/cuda/sc/tensor_core/batch_roles.cuh"
#include "kernels/cuda/sc/tensor_core/batch_wgmma.h"
#include "kernels/cuda/sc/tensor_core/prefill.h"

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

constexpr int kCombineBytes = 128 * 1024;

// The operator that most use: halved, 128 cycles. The others have fewer kernels.
bool IsUsual(int stoc_len, bool direct_ranks) { return stoc_len == 128 && direct_ranks; }

// The smallest tile that takes no more of them than the largest would: weights are expanded for every tile. 24 and 48
// are worth their kernels (6 % of a step of 17 to 24 tokens of 8B, 11 % of one of 33 to 48), and so is 96 (20 % of a
// prompt of 65 to 96). Beyond those, tiles of 96 would leave more sums than any other linear has room for (8B, 192
// tokens: 352 MB instead of 235), for 10 to 15 %.
int TileTokens(bool usual, int64_t tokens) {
  if (!usual) return tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
  const int largest = tokens <= 96 ? 96 : 64;
  const int64_t tiles = (tokens + largest - 1) / largest;
  for (const int tile : {16, 24, 32, 48, 64}) {
    if (tile * tiles >= tokens) return tile;
  }
  return largest;
}

// How blocks share the chunks of all tiles.
struct Shares {
  unsigned blocks = 0;
  int owners = 0;
  int helped = 0;
  int64_t stored_chunks = 0;  // of each tile's: those whose sums go to memory
};

// Owners where they keep two of three multiprocessors busy: passing the sums of chunks on through memory takes half as
// long as making them (measured). Compiled for the usual operator only, and not for tiles of 96: the registers that
// outputs would take go to memory and back then, which is slower (prompts of 80 tokens: 4 %, of 140: 11 %).
Shares MakeShares(const DeviceContext& ctx, const ScStreams& streams, bool usual, int groups) {
  const int chunks = streams.chunks;
  const int tiles = groups / (kRows / kGroupRows) * streams.token_tiles;
  const int waves = (tiles + ctx.sm_count - 1) / ctx.sm_count;
  Shares shares;
  shares.blocks = static_cast<unsigned>(std::min<int64_t>(ctx.sm_count, int64_t{tiles} * chunks));
  shares.stored_chunks = chunks;
  if (!usual || streams.tile_tokens == 96 || 3 * tiles < 2 * waves * ctx.sm_count) return shares;
  shares.owners = (tiles + waves - 1) / waves;
  const int helpers = ctx.sm_count - shares.owners;
  if (int64_t{tiles} * (kConsumers / 32) <= DeviceContext::kFlags) {
    shares.helped = static_cast<int>(int64_t{waves} * chunks * helpers / (tiles + waves * helpers));
  }
  if (shares.helped == 0) shares.blocks = static_cast<unsigned>(shares.owners);
  shares.stored_chunks = shares.helped;
  return shares;
}

template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners>
__global__ void __launch_bounds__(kThreads, 1) ScBatchWgmmaKernel(const __grid_constant__ BatchArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using G = Geometry<kWords, kHalves, kTokens>;
  extern __shared__ __align__(256) uint8_t memory[];
  const Shared shared{SharedAddress(memory), args.stages};
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
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
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
    Consumer<kWords, kHalves, kTable, kTokens, kOwners> consumer{
        args, shared,
        SharedAddress(rank_table) + (kTable ? threadIdx.x % 4 * 4 * 128 : threadIdx.x % batch::kThermometerCopies * 16),
        warp, args.minus_one};
    consumer.Consume();
    if constexpr (!kOwners) {
      const auto sync = [] { NamedWait(1, kConsumers); };
      const unsigned arrived = args.barrier.Arrive(sync);
      CombineSums<kConsumers / 32, kCombineBytes>(args.outputs, memory + kRingHeader,
                                                  [&] { args.barrier.Await(arrived, sync); });
    }
  }
#else
  __trap();  // chosen only where PrefillWgmmaBuilt()
#endif
}

using Kernel = void (*)(BatchArgs);
struct Choice {
  Kernel kernel = nullptr;
  int64_t stage_bytes = 0;
};
template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners = false>
Choice Make() {
  return {ScBatchWgmmaKernel<kWords, kHalves, kTable, kTokens, kOwners>,
          Geometry<kWords, kHalves, kTokens>::kStageBytes};
}
template <int kTokens>
Choice ChooseUsual(bool owners) {
  return owners ? Make<4, 1, false, kTokens, true>() : Make<4, 1, false, kTokens>();
}
template <int kTokens>
Choice ChooseTable(int words, int halves) {
  if (halves == 2) return words == 3 ? Make<3, 2, true, kTokens>() : Make<4, 2, true, kTokens>();
  switch (words) {
    case 1: return Make<1, 1, true, kTokens>();
    case 2: return Make<2, 1, true, kTokens>();
    case 3: return Make<3, 1, true, kTokens>();
    default: return Make<4, 1, true, kTokens>();
  }
}
// The sizes of TileTokens.
Choice Choose(const ScStreams& streams, bool usual, bool owners) {
  switch (streams.tile_tokens) {
    case 16: return usual ? ChooseUsual<16>(owners) : ChooseTable<16>(streams.words, streams.halves);
    case 24: return ChooseUsual<24>(owners);
    case 32: return usual ? ChooseUsual<32>(owners) : ChooseTable<32>(streams.words, streams.halves);
    case 48: return ChooseUsual<48>(owners);
    case 96: return Make<4, 1, false, 96>();
    default: return usual ? ChooseUsual<64>(owners) : ChooseTable<64>(streams.words, streams.halves);
  }
}

}  // namespace

bool ScBatchWgmmaSupports(const DeviceContext& ctx, const ScOperator& op, int64_t rows) {
  return ctx.compute_capability == 90 && PrefillWgmmaBuilt() && ScPrefillSupports(op) && rows >= 1 &&
         rows <= kMaxBatchWgmmaTokens;
}

int64_t ScBatchWgmmaScratchBytes(const DeviceContext& ctx, const ScOperator& op, const ScDims& dims, int64_t tokens,
                                 int64_t rows) {
  const bool usual = IsUsual(op.config.stoc_len, RanksAreDirect(op));
  const ScStreams streams = MakeScStreams(dims, tokens, TileTokens(usual, tokens), op.config.stoc_len);
  const int groups = static_cast<int>((rows + kRows - 1) / kRows) * (kRows / kGroupRows);
  const int64_t sum_bytes = SumsAreWide(op.max_count, dims) ? sizeof(int32_t) : sizeof(int16_t);
  return streams.bytes() + streams.scale_count() * static_cast<int64_t>(sizeof(float)) +
         MakeShares(ctx, streams, usual, groups).stored_chunks * groups * kGroupRows * streams.tokens_padded() *
             sum_bytes;
}

void LaunchScBatchWgmma(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxBatchTasks && a.rows >= 1 && a.rows <= kMaxBatchWgmmaTokens);
  const bool usual = IsUsual(tables.stoc_len, tables.direct_ranks);
  const int tile_tokens = TileTokens(usual, a.rows);
  Scratch scratch(ctx.workspace);
  BatchArgs args;
  ScStreams& streams = args.streams;
  streams = MakeScStreams(a.dims, a.rows, tile_tokens, tables.stoc_len);
  streams.data = scratch.Take<uint8_t>(streams.bytes());
  streams.scales = scratch.Take<float>(streams.scale_count());
  args.outputs =
      MakeBatchOutputs(tables, a, reporter, tasks, count, kRows, streams.token_tiles * (tile_tokens / kTileTokens));
  if (!usual) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.barrier = ctx.grid_barrier();

  const Shares shares = MakeShares(ctx, streams, usual, args.outputs.groups);
  const bool owners = shares.owners > 0;
  args.outputs.combined = BlockShare::Of(args.outputs.combine_units(), shares.blocks);
  args.owners = shares.owners;
  args.helped = shares.helped;
  if (shares.helped > 0) args.flags = ctx.flags();
  if (shares.stored_chunks > 0) {
    args.outputs.sums = scratch.Take<uint8_t>(args.outputs.sum_bytes() / streams.chunks * shares.stored_chunks);
  }
  const Choice choice = Choose(streams, usual, owners);
  const int64_t table_bytes =
      usual ? int64_t{batch::kThermometerBytes} : int64_t{streams.halves} * std::max(args.masks, 16) * 128;
  args.stages = static_cast<int>(
      std::min<int64_t>(kMaxStages, (ctx.max_shared_bytes - kRingHeader - table_bytes) / choice.stage_bytes));
  STOCH_CHECK(args.stages >= 2);
  const auto shared = static_cast<size_t>(
      kRingHeader + std::max<int64_t>(args.stages * choice.stage_bytes + table_bytes, kCombineBytes));
  STOCH_CUDA(
      cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  LaunchExpandStreams(ctx, tables, a, streams, nullptr, 0);
  LaunchOverlapped(ctx, choice.kernel, dim3(shares.blocks), dim3(kThreads), shared, args);
}

}  // namespace stoch::cuda
