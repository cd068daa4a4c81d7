// SPDX-License-Identifier: Apache-2.0
// SC linear on Hopper's binary wgmma: see prefill.h for what it computes, streams.h for the activations.
//
// A cluster of two blocks owns a tile of 256 weight rows x 192 tokens. In each block one producer thread fills the ring
// (each block fetches half of every stage for both), and two warpgroups of 64 rows multiply: weights become
// thermometers in registers (A), a stage is B.
//
// Bound by the instructions next to wgmma and, in a whole model, by power as well.
// What was tried: docs/tuning.md#prompts-sc_prefill_wgmma.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tensor_core/grouped_kernels.h"
#include "kernels/cuda/sc/tensor_core/prefill_roles.cuh"

namespace stoch::cuda {
namespace {

using prefill::Consumer;
using prefill::kConsumerRegisters;
using prefill::kConsumers;
using prefill::kMaxStages;
using prefill::kProducerRegisters;
using prefill::kRingHeader;
using prefill::kScaleBytes;
using prefill::kStageBytes;
using prefill::kThreads;
using prefill::kUnitBytes;
using prefill::Produce;
using prefill::Ring;

template <int kWords, int kHalves, bool kTable, bool kMixed, typename Args>
__global__ void __launch_bounds__(kThreads, 1) PrefillWgmmaKernel(const __grid_constant__ Args args, int stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(256) uint8_t ring_memory[];
  static_assert(kStageBytes<kWords, kMixed> % kRingHeader == 0);  // TableRanks
  const uint32_t rank = ClusterRank();
  const int cluster = static_cast<int>(blockIdx.x) / kPrefillCluster;
  Ring ring{SharedAddressInRegister(ring_memory), stages};
  uint8_t* rank_table = ring_memory + kRingHeader + stages * kStageBytes<kWords, kMixed>;
  if constexpr (kTable) FillRankTable<kWords, kHalves>(args.ranks, args.masks, args.levels, rank_table);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      BarrierInit(ring.full(i), 1);
      BarrierInit(ring.empty(i), kPrefillCluster * kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  ClusterSync();
  // From one lane, so that the compiler knows roles, and all that loops over stages, to be the same across a warp.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kProducerRegisters));
    if (threadIdx.x == kConsumers) Produce<kWords, kMixed>(args, ring, cluster, rank);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
    const uint32_t lane = threadIdx.x % 32;
    Consumer<kWords, kHalves, kTable, kMixed, Args> consumer{args,
                                                             ring,
                                                             SharedAddressInRegister(rank_table) + lane % 4 * 4 * 128,
                                                             warp,
                                                             MapToCluster(ring.base, lane % kPrefillCluster),
                                                             lane < kPrefillCluster,
                                                             args.minus_one};
    consumer.Run(cluster, rank);
  }
  // No block may leave while its neighbour still copies into it or arrives at its barriers.
  __syncwarp();
  ClusterSync();
#else
  __trap();  // chosen only where GpuTraits has wgmma
#endif
}

template <int kWords, int kHalves, bool kTable, typename Args = PrefillArgs>
const void* Kernel(bool mixed = false) {
  if constexpr (!prefill::kIsGrouped<Args>) {
    if (mixed) return reinterpret_cast<const void*>(PrefillWgmmaKernel<kWords, kHalves, kTable, true, Args>);
  }
  return reinterpret_cast<const void*>(PrefillWgmmaKernel<kWords, kHalves, kTable, false, Args>);
}

// Two halves have at least three words each.
const void* KernelOf(int words, int halves, bool table, bool mixed) {
  if (halves == 2) return words == 3 ? Kernel<3, 2, true>(mixed) : Kernel<4, 2, true>(mixed);
  switch (words) {
    case 1: return Kernel<1, 1, true>(mixed);
    case 2: return table ? Kernel<2, 1, true>(mixed) : Kernel<2, 1, false>(mixed);
    case 3: return Kernel<3, 1, true>(mixed);
    default: return table ? Kernel<4, 1, true>(mixed) : Kernel<4, 1, false>(mixed);
  }
}

const void* KernelOf(const PrefillArgs& args) {
  return KernelOf(args.streams.words, args.streams.halves, args.ranks != nullptr, args.streams.gains != nullptr);
}
const void* KernelOf(const GroupedArgs& args) {
  STOCH_CHECK(args.streams.halves == 1 && (args.streams.words == 2 || args.streams.words == 4));
  const bool table = args.ranks != nullptr;
  if (args.streams.words == 2) return table ? Kernel<2, 1, true, GroupedArgs>() : Kernel<2, 1, false, GroupedArgs>();
  return table ? Kernel<4, 1, true, GroupedArgs>() : Kernel<4, 1, false, GroupedArgs>();
}

template <typename Args>
const void* Choose(DeviceContext& ctx, const ScPlan& plan, const Args& args) {
  const void* kernel = KernelOf(args);
  const size_t stage = static_cast<size_t>((4 * args.streams.words + 2) * kUnitBytes + kScaleBytes) +
                       (args.streams.gains != nullptr ? size_t{prefill::kTokenScaleBytes} : 0);
  STOCH_CHECK(plan.stages >= 2 && plan.stages <= kMaxStages);
  STOCH_CHECK(static_cast<size_t>(plan.shared_bytes) >= kRingHeader + static_cast<size_t>(plan.stages) * stage);
  AllowShared(ctx, kernel, static_cast<size_t>(plan.shared_bytes));
  return kernel;
}

cudaLaunchConfig_t Config(cudaStream_t stream, const ScPlan& plan, int clusters, cudaLaunchAttribute* attribute) {
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim = {kPrefillCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * kPrefillCluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = stream;
  config.attrs = attribute;
  config.numAttrs = 1;
  return config;
}

int64_t MaxClusters(const void* kernel, const ScPlan& plan) {
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = Config(nullptr, plan, 1, &attribute);
  int clusters = 0;
  STOCH_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

template <typename Args>
void Launch(DeviceContext& ctx, const void* kernel, const ScPlan& plan, Args args) {
  const ScStreams& s = args.streams;
  const int shortest = std::min(s.blocks_per_chunk, s.dim_blocks - (s.chunks - 1) * s.blocks_per_chunk) * s.halves;
  args.stagger = shortest >= plan.stages;
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = Config(ctx.stream, plan, args.schedule.clusters, &attribute);
  int stages = plan.stages;
  void* parameters[] = {&args, &stages};
  STOCH_CUDA(cudaLaunchKernelExC(&config, kernel, parameters));
}

}  // namespace

int64_t MaxPrefillClusters(DeviceContext& ctx, const ScPlan& plan, const PrefillArgs& args) {
  return MaxClusters(Choose(ctx, plan, args), plan);
}

void LaunchPrefillWgmma(DeviceContext& ctx, const ScPlan& plan, const PrefillArgs& args) {
  Launch(ctx, Choose(ctx, plan, args), plan, args);
}

void LaunchGroupedWgmma(DeviceContext& ctx, const ScPlan& plan, const GroupedArgs& args) {
  const void* kernel = Choose(ctx, plan, args);
  GroupedArgs copy = args;
  GroupedSchedule& schedule = copy.schedule;
  const int pieces = schedule.most_tiles * schedule.supers;
  schedule.clusters = std::min(static_cast<int>(MaxClusters(kernel, plan)), pieces);
  schedule.max_steps = (pieces + schedule.clusters - 1) / schedule.clusters;
  Launch(ctx, kernel, plan, copy);
}

PrefillSchedule MakePrefillSchedule(int clusters, int supers, int tokens, int chunks) {
  PrefillSchedule s;
  const int token_tiles = (tokens + kPrefillTokens - 1) / kPrefillTokens;
  s.supers = supers;
  s.tiles = supers * token_tiles;
  s.clusters = std::min(clusters, s.tiles);
  s.chunks = chunks;
  s.last_width = (tokens - (token_tiles - 1) * kPrefillTokens + 63) / 64;
  const int wide_tiles = s.tiles - supers;
  s.weigh_last = wide_tiles >= s.clusters;
  s.full = (s.weigh_last ? wide_tiles : s.tiles) / s.clusters;
  s.rest_wide = (s.weigh_last ? wide_tiles : s.tiles) - s.full * s.clusters;
  s.rest_cost = s.start_cost(s.rest());
  // A range no shorter than a tile's chunks over the steps a piece can be placed in keeps pieces apart in time.
  const int even = (s.rest_cost + s.clusters - 1) / s.clusters;
  const int apart = (s.wide_cost() + s.full) / (s.full + 1);
  s.extra = std::max(even, apart);
  s.max_steps = s.full + 2 + s.extra / s.last_cost() + 1;
  return s;
}

}  // namespace stoch::cuda
