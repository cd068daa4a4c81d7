// SC linears of 9 to 64 tokens on Hopper's binary wgmma: the operands of sc_prefill_wgmma.cu in tiles of 16 or 32
// tokens, with the dimensions of a tile of 256 weight rows shared out over a cluster.
//
// In a round, every block of a cluster computes one chunk of the same 256 rows: block r takes chunks r, r + k, ... Four
// warpgroups of 64 rows make thermometers in registers and multiply them with streams that a producer warp copies into
// a ring, 16 dimensions a stage, the codes beside them. Scaled products go to the block's shared memory; a round later
// every block adds up its share of the tokens in chunk order, reading the neighbours' products through the cluster.
// So partial results never see device memory (as fp32 they would be as many bytes as the weights from 32 tokens on),
// and a shape with few rows still fills the GPU.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sc_batch.h"
#include "kernels/cuda/sc_batch_roles.cuh"
#include "kernels/cuda/sc_prefill.h"

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

template <int kWords, int kHalves, bool kTable, int kTokens>
__global__ void __launch_bounds__(kThreads, 1) ScBatchWgmmaKernel(const __grid_constant__ BatchArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using G = Geometry<kWords, kTokens>;
  extern __shared__ __align__(128) uint8_t memory[];
  const Shared shared{SharedAddress(memory), args.stages, static_cast<uint32_t>(G::kProductBytes)};
  uint8_t* rank_table = memory + shared.rank_table<G>();
  if constexpr (kTable) FillRankTable<kWords, kHalves>(args.ranks, args.masks, args.levels, rank_table);
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; ++i) {
      BarrierInit(shared.full(i), 1);
      BarrierInit(shared.empty(i), kConsumers / 32);
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(shared.written(i), args.cluster * kConsumers / 32);
      BarrierInit(shared.read(i), args.cluster * kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  ClusterSync();
  StartNext();
  WaitForPrevious();
  // From one lane, so that the compiler knows roles, and all that loops over stages, to be the same across a warp.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kProducerRegisters));
    if (warp == kConsumers / 32) Produce<G>(args, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
    Consumer<kWords, kHalves, kTable, kTokens> consumer{
        args, shared, SharedAddress(rank_table) + threadIdx.x % 4 * 4 * 128, warp, args.minus_one};
    consumer.Run();
  }
  // No block may leave while another reads its products or arrives at its barriers.
  __syncwarp();
  ClusterSync();
#else
  __trap();  // chosen only where PrefillWgmmaBuilt()
#endif
}

using Kernel = void (*)(BatchArgs);

template <int kTokens>
Kernel KernelOf(int words, int halves, bool table) {
  if (halves == 2)
    return words == 3 ? ScBatchWgmmaKernel<3, 2, true, kTokens> : ScBatchWgmmaKernel<4, 2, true, kTokens>;
  switch (words) {
    case 1: return ScBatchWgmmaKernel<1, 1, true, kTokens>;
    case 2: return ScBatchWgmmaKernel<2, 1, true, kTokens>;
    case 3: return ScBatchWgmmaKernel<3, 1, true, kTokens>;
    default: return table ? ScBatchWgmmaKernel<4, 1, true, kTokens> : ScBatchWgmmaKernel<4, 1, false, kTokens>;
  }
}

template <int kTokens>
int64_t StageBytesOf(int words) {
  switch (words) {
    case 1: return Geometry<1, kTokens>::kStageBytes;
    case 2: return Geometry<2, kTokens>::kStageBytes;
    case 3: return Geometry<3, kTokens>::kStageBytes;
    default: return Geometry<4, kTokens>::kStageBytes;
  }
}

struct Choice {
  Kernel kernel = nullptr;
  int stages = 0;
  size_t shared = 0;
};
template <int kTokens>
Choice Choose(const DeviceContext& ctx, const BatchArgs& args) {
  const bool table = args.ranks != nullptr;
  const int64_t stage = StageBytesOf<kTokens>(args.streams.words);
  const int64_t fixed = kRingHeader + 2 * Geometry<4, kTokens>::kProductBytes +
                        (table ? int64_t{args.streams.halves} * std::max(args.masks, 16) * 128 : 0);
  const int64_t stages = std::min<int64_t>(kMaxStages, (ctx.max_shared_bytes - fixed) / stage);
  STOCH_CHECK(stages >= 2);
  return {KernelOf<kTokens>(args.streams.words, args.streams.halves, table), static_cast<int>(stages),
          static_cast<size_t>(fixed + stages * stage)};
}

struct Launch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  Launch(const DeviceContext& ctx, const Choice& choice, int clusters, int cluster) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = choice.shared;
    config.stream = ctx.stream;
    config.attrs = attributes;
    config.numAttrs = 2;
  }
};

// How many clusters of `cluster` blocks run at once.
int Resident(const DeviceContext& ctx, const Choice& choice, int cluster) {
  const Launch launch(ctx, choice, 1, cluster);
  int clusters = 0;
  STOCH_CUDA(cudaOccupancyMaxActiveClusters(&clusters, choice.kernel, &launch.config));
  return clusters;
}

}  // namespace

bool ScBatchWgmmaSupports(const DeviceContext& ctx, const ScOperator& op, int64_t rows) {
  return ctx.compute_capability == 90 && PrefillWgmmaBuilt() && ScPrefillSupports(op) && rows >= 1 &&
         rows <= kMaxBatchWgmmaTokens;
}

void LaunchScBatchWgmma(DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count, int max_cluster) {
  STOCH_CHECK(count >= 1 && count <= kMaxBatchTasks && a.rows >= 1);
  const int tile_tokens = a.rows <= 16 ? 16 : 32;
  Scratch scratch(ctx.workspace);
  BatchArgs args;
  args.streams = MakeScStreams(a.dims, a.rows, tile_tokens, tables.stoc_len);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  args.streams.scales = scratch.Take<float>(args.streams.scale_count());
  args.gain = tables.gain;
  if (!RanksAreDirect(op)) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.reporter = reporter;
  args.task_count = count;
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].weight;
    args.tasks[i] = {w.codes,
                     w.scales,
                     tasks[i].out.data,
                     tasks[i].out.stride,
                     static_cast<int>(w.rows),
                     static_cast<int>(w.rows_padded),
                     args.row_tiles,
                     tasks[i].out.add};
    args.row_tiles += static_cast<int>((w.rows + kRows - 1) / kRows);
  }
  const Choice choice = tile_tokens == 16 ? Choose<16>(ctx, args) : Choose<32>(ctx, args);
  args.stages = choice.stages;
  STOCH_CUDA(cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(choice.shared)));
  const int tiles = args.row_tiles * args.streams.token_tiles;
  int clusters = 0;
  int64_t least = 0;
  for (int k = 1; k <= max_cluster; k *= 2) {
    const int resident = Resident(ctx, choice, k);
    if (resident == 0) break;
    const int64_t rounds = int64_t{(tiles + resident - 1) / resident} * ((args.streams.chunks + k - 1) / k);
    if (clusters == 0 || rounds < least) {
      least = rounds;
      args.cluster = k;
      clusters = std::min(tiles, resident);
    }
  }
  STOCH_CHECK(clusters >= 1);
  LaunchExpandStreams(ctx.stream, tables, a, args.streams, nullptr, 0);
  const Launch launch(ctx, choice, clusters, args.cluster);
  STOCH_CUDA(cudaLaunchKernelEx(&launch.config, choice.kernel, args));
}

}  // namespace stoch::cuda
