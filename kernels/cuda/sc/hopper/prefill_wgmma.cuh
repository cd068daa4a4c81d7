// SPDX-License-Identifier: Apache-2.0
// SC linear on Hopper's binary wgmma: see prefill.h for what it computes, streams.h for the activations.
//
// A cluster of two blocks owns a tile of 256 weight rows x 192 tokens. In each block one producer thread fills the ring
// (each block fetches half of every stage for both), and two warpgroups of 64 rows multiply: weights become
// thermometers in registers (A), a stage is B.
//
// Bound by the tensor cores and, in a whole model, by power.
// Alternatives that lost: docs/tuning/prompt.md.
#pragma once

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/hopper/prefill_roles.cuh"

namespace stoch::cuda::prefill {

template <int kWords, int kHalves, bool kTable, bool kMixed, typename Args>
__global__ void __launch_bounds__(kThreads, 1) PrefillWgmmaKernel(const __grid_constant__ Args args, int stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(256) uint8_t ring_memory[];
  static_assert(kStageBytes<kWords, kMixed, Args> % kRingHeader == 0);  // TableRanks
  const uint32_t rank = ClusterRank();
  const int cluster = static_cast<int>(blockIdx.x) / kPrefillCluster;
  Ring ring{SharedAddressInRegister(ring_memory), stages};
  uint8_t* rank_table = ring_memory + kRingHeader + stages * kStageBytes<kWords, kMixed, Args>;
  if constexpr (kTable) FillRankTable<kWords, kHalves>(args.ranks, args.masks, args.levels, rank_table);
  if constexpr (kHasChunkWords<Args>) {
    const int count = args.streams.token_tiles * args.streams.chunks;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) rank_table[i] = args.words[i];
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      BarrierInit(ring.full(i), 1);
      BarrierInit(ring.empty(i), kPrefillCluster * kConsumers / 32);
    }
    FenceBarrierInit();
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
    Consumer<kWords, kHalves, kTable, kMixed, Args> consumer{
        args,
        ring,
        SharedAddressInRegister(rank_table) + (kTable ? lane % 4 * 4 * 128 : 0),
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

// Checks and allows the shared memory of a launch.
inline void AllowLaunch(DeviceContext& ctx, const void* kernel, const LinearPlan& plan, int64_t stage_bytes) {
  STOCH_CHECK(plan.stages >= 2 && plan.stages <= kMaxStages);
  STOCH_CHECK(plan.shared_bytes >= kRingHeader + plan.stages * stage_bytes);
  AllowShared(ctx, kernel, static_cast<size_t>(plan.shared_bytes));
}

inline int64_t StageBytes(const StreamShape& streams, bool mixed) {
  return (4 * streams.words + 2) * kUnitBytes + kScaleBytes + (mixed ? kTokenScaleBytes : 0);
}

inline cudaLaunchConfig_t Config(cudaStream_t stream, const LinearPlan& plan, int clusters,
                                 cudaLaunchAttribute* attribute) {
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

inline int64_t MaxClusters(const void* kernel, const LinearPlan& plan) {
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = Config(nullptr, plan, 1, &attribute);
  int clusters = 0;
  STOCH_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

template <typename Args>
void Launch(DeviceContext& ctx, const void* kernel, const LinearPlan& plan, Args args, int clusters) {
  const ScStreams& s = args.streams;
  const int shortest = std::min(s.blocks_per_chunk, s.dim_blocks - (s.chunks - 1) * s.blocks_per_chunk) * s.halves;
  args.stagger = shortest >= plan.stages;
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = Config(ctx.stream, plan, clusters, &attribute);
  int stages = plan.stages;
  void* parameters[] = {&args, &stages};
  STOCH_CUDA(cudaLaunchKernelExC(&config, kernel, parameters));
}

}  // namespace stoch::cuda::prefill
