// SPDX-License-Identifier: Apache-2.0
// The prefill kernel: SC linears on Hopper's binary wgmma. prefill.h says what it computes, sc/tensor_core/streams.h
// how activations lie in memory.
//
// A cluster of two blocks multiplies a tile of 256 weight rows x 192 tokens. Blocks are warp-specialized: one producer
// thread fills the ring of stages (the producer of each block copies half of every stage to both blocks), and two
// consumer warpgroups of 64 weight rows each multiply. Operand A is thermometers of weights, made in registers; operand
// B is the stage.
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

// A persistent kernel; all clusters are resident at once. kWords, kHalves: words of a half stream, halves of a stream.
// kTable: ranks of weights (ones of their streams) come from a table in shared memory; else the formula DirectRanks
// gives them. kMixed: every (chunk, token) has a gain of its own. Args: PrefillArgs (tokens of a call), GroupedArgs
// (slots of experts) or RowGroupArgs (rows by group of lengths). `stages`: stages of the ring.
template <int kWords, int kHalves, bool kTable, bool kMixed, typename Args>
__global__ void __launch_bounds__(kThreads, 1) PrefillWgmmaKernel(const __grid_constant__ Args args, int stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(256) uint8_t ring_memory[];
  // Keeps the rank table, which follows the ring, 256-byte aligned, as TableRanks requires.
  static_assert(kStageBytes<kWords, kMixed> % kRingHeader == 0);
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
    FenceBarrierInit();
  }
  __syncthreads();
  ClusterSync();
  // Broadcast from one lane, so that the compiler knows `warp`, and with it the role and the loops over stages, to be
  // uniform in a warp.
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
  // A block must not exit while the other block of its cluster still copies to its shared memory or arrives at its
  // barriers.
  __syncwarp();
  ClusterSync();
#else
  __trap();  // unreachable: plans choose this kernel only for GPUs with wgmma
#endif
}

// Checks that the plan's shared memory holds its stages, and raises the kernel's limit of dynamic shared memory.
inline void AllowLaunch(DeviceContext& ctx, const void* kernel, const LinearPlan& plan, int64_t stage_bytes) {
  STOCH_CHECK(plan.stages >= 2 && plan.stages <= kMaxStages);
  STOCH_CHECK(plan.shared_bytes >= kRingHeader + plan.stages * stage_bytes);
  AllowShared(ctx, kernel, static_cast<size_t>(plan.shared_bytes));
}

// Bytes of a stage: one half of a block's streams and the scales. mixed: gains of tokens, too.
inline int64_t StageBytes(const StreamShape& streams, bool mixed) {
  return (4 * streams.words + 2) * kUnitBytes + kScaleBytes + (mixed ? kTokenScaleBytes : 0);
}

// The launch configuration of `clusters` clusters. `attribute` receives the cluster size and must outlive the result.
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

// The number of clusters of `kernel` that the GPU runs at once.
inline int64_t MaxClusters(const void* kernel, const LinearPlan& plan) {
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = Config(nullptr, plan, 1, &attribute);
  int clusters = 0;
  STOCH_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

// Launches `kernel` with `clusters` clusters. Sets args.stagger if even the shortest chunk has as many stages as the
// ring.
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
