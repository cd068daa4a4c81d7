// SPDX-License-Identifier: Apache-2.0
// The prefill kernel's ring of stages in shared memory, and its producer: the thread that copies streams of
// activations into the ring. A stage is one block of 16 dimensions or, if streams have two halves, one half of a block.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/hopper/grouped_kernels.h"
#include "kernels/cuda/sc/hopper/row_group_kernels.h"

namespace stoch::cuda::prefill {

inline constexpr int kTokens = kPrefillTokens;                           // tokens of a tile
inline constexpr int kConsumers = 128 * kPrefillGroups;                  // consumer threads
inline constexpr int kThreads = kConsumers + 128;                        // consumers and the producer's warpgroup
inline constexpr int kAccumulators = kTokens / 2;                        // wgmma accumulators of a thread
inline constexpr int kUnitBytes = kTokens * 16;                          // bytes of a unit of streams (streams.h)
inline constexpr int kTokenScaleBytes = kTokens * 4;                     // scales of a tile's tokens in one chunk
inline constexpr int kScaleBytes = kTokenScaleBytes + kPrefillRows * 4;  // scales of a chunk, in its last stage
inline constexpr int kMaxStages = 6;                                     // stages of the ring, at most
// Registers of a thread (setmaxnreg). The producer's warpgroup releases registers, which the consumers take: together
// they have no more than the even share of a launch of kThreads.
inline constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
inline constexpr int kProducerRegisters = kPrefillGroups == 2 ? 24 : 32;
inline constexpr int kConsumerRegisters =
    ((kPrefillGroups + 1) * kLaunchRegisters - kProducerRegisters) / kPrefillGroups / 8 * 8;
inline constexpr int kRingHeader = 256;  // bytes for the barriers; stages and rank table are aligned to as many

// One thread's view of the ring and its position in it. All addresses are made from one base address, because the
// compiler would make addresses of static shared variables again from special registers in every iteration.
struct Ring {
  uint32_t base;       // shared address of the full barriers, then the empty barriers; stages follow at kRingHeader
  int stages;          // stages of the ring
  int slot = 0;        // index of the current stage
  uint32_t phase = 0;  // phase parity of the current stage's full barrier; flips when the ring wraps around
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxStages + i); }
  __device__ void Next() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

template <typename Args>
inline constexpr bool kIsGrouped = std::is_same_v<Args, GroupedArgs>;
template <typename Args>
inline constexpr bool kIsRowGroup = std::is_same_v<Args, RowGroupArgs>;

// ScheduleOf returns the schedule of a launch, StepsOf the number of steps in it that cluster `cluster` runs through.
template <typename Args>
__device__ __forceinline__ const auto& ScheduleOf(const Args& args) {
  if constexpr (kIsRowGroup<Args>) {
    return args.rows.group->schedule;
  } else {
    return args.schedule;
  }
}
template <typename Args>
__device__ __forceinline__ int StepsOf(const Args& args, int cluster) {
  if constexpr (kIsRowGroup<Args>) {
    return cluster < args.rows.group->schedule.clusters ? args.rows.group->schedule.max_steps : 0;
  } else {
    return args.schedule.max_steps;
  }
}

// The task that a super tile belongs to.
__device__ __forceinline__ const ScKernelTask& TaskOf(const PrefillArgs& args, int /*token_tile*/, int super) {
  int i = 0;
  while (i + 1 < args.task_count && super >= args.tasks[i + 1].first_block) ++i;
  return args.tasks[i];
}

// The task that a super tile belongs to, with the weights of the expert that the slots of the token tile chose.
__device__ __forceinline__ ScKernelTask TaskOf(const GroupedArgs& args, int token_tile, int super) {
  int i = 0;
  while (i + 1 < args.task_count && super >= args.tasks[i + 1].first_block) ++i;
  ScKernelTask task = args.tasks[i];
  const ScWeightView& w = args.views[i][args.experts[args.schedule.first_tile + token_tile]];
  task.codes = w.codes;
  task.scales = w.scales;
  return task;
}

// The first weight row in its task of block `rank` of the cluster, for a super tile.
__device__ __forceinline__ int FirstRow(const ScKernelTask& task, int super, uint32_t rank) {
  return (super - task.first_block) * kSuperRows + static_cast<int>(rank) * kPrefillRows;
}

// Bytes of streams in a stage; kWords: words of a half stream.
template <int kWords>
inline constexpr int kStreamBytes = (4 * kWords + 2) * kUnitBytes;
// Bytes of a stage: streams, scales and, with kMixed, gains of tokens, which come after all scales.
template <int kWords, bool kMixed>
inline constexpr int kStageBytes = kStreamBytes<kWords> + kScaleBytes + (kMixed ? kTokenScaleBytes : 0);

// The producer's main loop, run by one thread of each block: copies the streams of all pieces of the cluster's schedule
// into the ring, its half of each stage to both blocks of the cluster, and the scales of a chunk with the chunk's last
// stage to its own block. `rank`: rank of the block in its cluster.
template <int kWords, bool kMixed, typename Args>
__device__ void Produce(const Args& args, Ring ring, int cluster, uint32_t rank) {
  const ScStreams& s = args.streams;
  constexpr uint32_t kBytes = kStreamBytes<kWords>;
  constexpr uint32_t kHalfBytes = kBytes / 2;
  const auto& schedule = ScheduleOf(args);
  const int steps = StepsOf(args, cluster);
  for (int step = 0; step < steps; ++step) {
    const auto piece = schedule.At(cluster, step);
    const int token_tile = piece.tile / schedule.supers;
    const int super = piece.tile % schedule.supers;
    if (kIsGrouped<Args> && piece.chunk_begin == piece.chunk_end) break;  // no more tiles of slots
    const ScKernelTask& task = TaskOf(args, token_tile, super);
    const int first_row = FirstRow(task, super, rank);
    const int rows = max(min(kPrefillRows, task.rows_padded - first_row), 0);
    for (int chunk = piece.chunk_begin; chunk < piece.chunk_end; ++chunk) {
      const int begin = chunk * s.blocks_per_chunk;
      const int end = min(begin + s.blocks_per_chunk, s.dim_blocks);
      const uint8_t* from = s.data + s.block_offset(token_tile, begin, 0) + rank * kHalfBytes;
      const int stages = (end - begin) * s.halves;
      for (int i = 0; i < stages; ++i) {
        const bool last = i + 1 == stages;
        const uint32_t to = ring.base + kRingHeader + static_cast<uint32_t>(ring.slot * kStageBytes<kWords, kMixed>);
        const uint32_t full = ring.full(ring.slot);
        BarrierWait(ring.empty(ring.slot), ring.phase ^ 1);
        BarrierExpect(full, kBytes + (last ? (kMixed ? 2 : 1) * kTokenScaleBytes + rows * 4 : 0));
        BulkCopyToCluster(to + rank * kHalfBytes, from, kHalfBytes, full, (1 << kPrefillCluster) - 1);
        if (last) {
          BulkCopy(to + kBytes, s.scales + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens,
                   kTokenScaleBytes, full);
          if constexpr (kMixed) {
            BulkCopy(to + kBytes + kScaleBytes,
                     s.gains + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens, kTokenScaleBytes,
                     full);
          }
          if (rows > 0) {
            BulkCopy(to + kBytes + kTokenScaleBytes,
                     task.scales + static_cast<int64_t>(chunk) * task.rows_padded + first_row, rows * 4, full);
          }
        }
        from += kBytes;
        ring.Next();
      }
    }
  }
}

}  // namespace stoch::cuda::prefill
