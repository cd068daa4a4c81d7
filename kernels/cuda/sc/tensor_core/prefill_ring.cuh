// SPDX-License-Identifier: Apache-2.0
// The ring of stages of the wgmma kernel of the SC linear, and the producer: a thread that copies blocks of 16 dimensions
// into it.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/tensor_core/chunk_words_kernels.h"
#include "kernels/cuda/sc/tensor_core/grouped_kernels.h"
#include "kernels/cuda/sc/tensor_core/row_group_kernels.h"

namespace stoch::cuda::prefill {

inline constexpr int kTokens = kPrefillTokens;
inline constexpr int kConsumers = 128 * kPrefillGroups;
inline constexpr int kThreads = kConsumers + 128;
inline constexpr int kAccumulators = kTokens / 2;
inline constexpr int kUnitBytes = kTokens * 16;
inline constexpr int kTokenScaleBytes = kTokens * 4;
inline constexpr int kScaleBytes = kTokenScaleBytes + kPrefillRows * 4;  // of the chunk that ends in a stage
inline constexpr int kMaxStages = 6;
// What the consumers take beyond the even share of a launch of kThreads, the producer's warpgroup gives back.
inline constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
inline constexpr int kProducerRegisters = kPrefillGroups == 2 ? 24 : 32;
inline constexpr int kConsumerRegisters =
    ((kPrefillGroups + 1) * kLaunchRegisters - kProducerRegisters) / kPrefillGroups / 8 * 8;
inline constexpr int kRingHeader = 256;  // the barriers; stages and rank table stay aligned to it

// The ring of stages as one thread walks it. One base address for all of it: addresses of static shared variables are
// made again from special registers in every iteration.
struct Ring {
  uint32_t base;  // shared address of: full barriers, empty barriers, stages at kRingHeader
  int stages;
  int slot = 0;
  uint32_t phase = 0;
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxStages + i); }
  __device__ void Next() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// kMixed: tokens have gains of their own, behind the scales.
template <int kWords, bool kMixed>
inline constexpr int kStageBytes = (4 * kWords + 2) * kUnitBytes + kScaleBytes + (kMixed ? kTokenScaleBytes : 0);

template <typename Args>
inline constexpr bool kIsGrouped = std::is_same_v<Args, GroupedArgs>;
template <typename Args>
inline constexpr bool kIsRowGroup = std::is_same_v<Args, RowGroupArgs>;
template <typename Args>
inline constexpr bool kHasChunkWords = std::is_same_v<Args, ChunkWordsArgs>;

// The split of the work, and how many steps of it a cluster has.
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

__device__ __forceinline__ const ScKernelTask& TaskOf(const PrefillArgs& args, int /*token_tile*/, int super) {
  int i = 0;
  while (i + 1 < args.task_count && super >= args.tasks[i + 1].first_block) ++i;
  return args.tasks[i];
}

// The matrix of the expert whose slots the tile has.
__device__ __forceinline__ ScKernelTask TaskOf(const GroupedArgs& args, int token_tile, int super) {
  int i = 0;
  while (i + 1 < args.task_count && super >= args.tasks[i + 1].first_block) ++i;
  ScKernelTask task = args.tasks[i];
  const ScWeightView& w = args.views[i][args.experts[args.schedule.first_tile + token_tile]];
  task.codes = w.codes;
  task.scales = w.scales;
  return task;
}

__device__ __forceinline__ int FirstRow(const ScKernelTask& task, int super, uint32_t rank) {
  return (super - task.first_block) * kSuperRows + static_cast<int>(rank) * kPrefillRows;
}

template <int kWords, bool kMixed, typename Args>
__device__ void Produce(const Args& args, Ring ring, int cluster, uint32_t rank) {
  const ScStreams& s = args.streams;
  constexpr uint32_t kBlockBytes = (4 * kWords + 2) * kUnitBytes;
  const auto& schedule = ScheduleOf(args);
  const int steps = StepsOf(args, cluster);
  for (int step = 0; step < steps; ++step) {
    const auto piece = schedule.At(cluster, step);
    const int token_tile = piece.tile / schedule.supers;
    const int super = piece.tile % schedule.supers;
    if (kIsGrouped<Args> && piece.chunk_begin == piece.chunk_end) break;  // no tile has so many slots
    const ScKernelTask& task = TaskOf(args, token_tile, super);
    const int first_row = FirstRow(task, super, rank);
    const int rows = max(min(kPrefillRows, task.rows_padded - first_row), 0);
    for (int chunk = piece.chunk_begin; chunk < piece.chunk_end; ++chunk) {
      const int begin = chunk * s.blocks_per_chunk;
      const int end = min(begin + s.blocks_per_chunk, s.dim_blocks);
      uint32_t bytes = kBlockBytes;  // that a block has
      if constexpr (kHasChunkWords<Args>) {
        bytes = (4 * args.words[token_tile * s.chunks + chunk] + 2) * kUnitBytes;
      }
      const uint32_t half_bytes = bytes / 2;
      const uint8_t* from = s.data + s.block_offset(token_tile, begin, 0) + rank * half_bytes;
      const int blocks = (end - begin) * s.halves;
      for (int i = 0; i < blocks; ++i) {
        const bool last = i + 1 == blocks;
        const uint32_t to = ring.base + kRingHeader + static_cast<uint32_t>(ring.slot * kStageBytes<kWords, kMixed>);
        const uint32_t full = ring.full(ring.slot);
        BarrierWait(ring.empty(ring.slot), ring.phase ^ 1);
        BarrierExpect(full, bytes + (last ? (kMixed ? 2 : 1) * kTokenScaleBytes + rows * 4 : 0));
        BulkCopyToCluster(to + rank * half_bytes, from, half_bytes, full, (1 << kPrefillCluster) - 1);
        if (last) {
          BulkCopy(to + kBlockBytes, s.scales + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens,
                   kTokenScaleBytes, full);
          if constexpr (kMixed) {
            BulkCopy(to + kBlockBytes + kScaleBytes,
                     s.gains + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens, kTokenScaleBytes,
                     full);
          }
          if (rows > 0) {
            BulkCopy(to + kBlockBytes + kTokenScaleBytes,
                     task.scales + static_cast<int64_t>(chunk) * task.rows_padded + first_row, rows * 4, full);
          }
        }
        from += kBlockBytes;
        ring.Next();
      }
    }
  }
}

}  // namespace stoch::cuda::prefill
