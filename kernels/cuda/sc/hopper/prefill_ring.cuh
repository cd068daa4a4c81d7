// SPDX-License-Identifier: Apache-2.0
// The ring of stages of the wgmma kernel of the SC linear, and the producer: a thread that copies blocks of 16 dimensions
// into it.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/hopper/chunk_words_kernels.h"
#include "kernels/cuda/sc/hopper/grouped_kernels.h"
#include "kernels/cuda/sc/hopper/row_group_kernels.h"

namespace stoch::cuda::prefill {

inline constexpr int kTokens = kPrefillTokens;
inline constexpr int kConsumers = 128 * kPrefillGroups;
inline constexpr int kThreads = kConsumers + 128;
inline constexpr int kAccumulators = kTokens / 2;
inline constexpr int kUnitBytes = kTokens * 16;
inline constexpr int kTokenScaleBytes = kTokens * 4;
inline constexpr int kScaleBytes = kTokenScaleBytes + kPrefillRows * 4;  // of the chunk that ends in a stage
inline constexpr int kMaxStages = 6;
// Registers that the consumers take beyond the even share of a launch of kThreads, the producer's warpgroup gives back.
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
  // Behind the stages: the table of ranks, or words of chunks.
  template <int kBytes>
  __device__ uint32_t end() const {
    return base + static_cast<uint32_t>(kRingHeader + stages * kBytes);
  }
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

// Bytes of streams in a stage: those of a block, or of as many words of it as kChunkPartWords.
template <int kWords, typename Args>
inline constexpr int kStreamBytes = (kHasChunkWords<Args> ? 4 * kChunkPartWords + 2 : 4 * kWords + 2) * kUnitBytes;
// kMixed: tokens have gains of their own, behind the scales; with words of chunks next to the scale of each, ahead of the
// scales of rows.
template <int kWords, bool kMixed, typename Args>
inline constexpr int kStageBytes = kStreamBytes<kWords, Args> + kScaleBytes + (kMixed ? kTokenScaleBytes : 0);
static_assert(kStageBytes<4, true, ChunkWordsArgs> == kChunkStageBytes);
// Where the scales of rows are, from the first scale on.
template <bool kMixed, typename Args>
inline constexpr uint32_t kRowScales = (kMixed && kHasChunkWords<Args> ? 2 : 1) * kTokenScaleBytes;

// Prefetches the codes that consumers will load of `rows` rows, blocks [begin, end). They ask for a block one ahead; of one word it
// is done before memory has answered.
__device__ __forceinline__ void PrefetchCodes(const ScKernelTask& task, const ScStreams& s, int first_row, int rows,
                                              int begin, int end) {
  const uint8_t* from = task.codes + (static_cast<int64_t>(first_row / kTileRows) * s.dim_blocks + begin) * kTileBytes;
#pragma unroll 1
  for (int row = 0; row < rows; row += kTileRows) {
    BulkPrefetch(from, static_cast<uint32_t>((end - begin) * kTileBytes));
    from += static_cast<int64_t>(s.dim_blocks) * kTileBytes;
  }
}

template <int kWords, bool kMixed, typename Args>
__device__ void Produce(const Args& args, Ring ring, int cluster, uint32_t rank) {
  const ScStreams& s = args.streams;
  constexpr uint32_t kBlockBytes = (4 * kWords + 2) * kUnitBytes;
  constexpr uint32_t kScales = kStreamBytes<kWords, Args>;
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
      const uint8_t* from = s.data + s.block_offset(token_tile, begin, 0);
      if constexpr (!kHasChunkWords<Args>) from += rank * (kBlockBytes / 2);
      // A block in one stage; with words of chunks in two where it has many: bytes of the first, and of the second.
      uint32_t first = kBlockBytes, second = 0;
      if constexpr (kHasChunkWords<Args>) {
        const auto at = static_cast<uint32_t>(token_tile * s.chunks + chunk);
        const uint32_t words = LoadSharedByte<0>(ring.end<kStageBytes<kWords, kMixed, Args>>() + at);
        first = (words > kChunkPartWords ? 4 * kChunkPartWords : 4 * words + 2) * kUnitBytes;
        second = words > kChunkPartWords ? (4 * (words - kChunkPartWords) + 2) * kUnitBytes : 0;
      }
      const int parts = kHasChunkWords<Args> && second > 0 ? 2 : 1;
      const int stages = (end - begin) * s.halves * parts;
      if constexpr (kHasChunkWords<Args>) PrefetchCodes(task, s, first_row, rows, begin, end);
      for (int i = 0; i < stages; ++i) {
        const bool last = i + 1 == stages;
        const uint32_t bytes = kHasChunkWords<Args> && parts == 2 && i % 2 == 1 ? second : first;
        const uint32_t half_bytes = bytes / 2;
        const uint32_t to =
            ring.base + kRingHeader + static_cast<uint32_t>(ring.slot * kStageBytes<kWords, kMixed, Args>);
        const uint32_t full = ring.full(ring.slot);
        BarrierWait(ring.empty(ring.slot), ring.phase ^ 1);
        BarrierExpect(full, bytes + (last ? (kMixed ? 2 : 1) * kTokenScaleBytes + rows * 4 : 0));
        const uint8_t* half = from;
        if constexpr (kHasChunkWords<Args>) half += rank * half_bytes;
        BulkCopyToCluster(to + rank * half_bytes, half, half_bytes, full, (1 << kPrefillCluster) - 1);
        if (last) {
          if constexpr (kMixed && kHasChunkWords<Args>) {
            BulkCopy(to + kScales,
                     args.scaled_gains + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens,
                     2 * kTokenScaleBytes, full);
          } else {
            BulkCopy(to + kScales, s.scales + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens,
                     kTokenScaleBytes, full);
          }
          if constexpr (kMixed && !kHasChunkWords<Args>) {
            BulkCopy(to + kScales + kScaleBytes,
                     s.gains + static_cast<int64_t>(chunk) * s.tokens_padded() + token_tile * kTokens, kTokenScaleBytes,
                     full);
          }
          if (rows > 0) {
            BulkCopy(to + kScales + kRowScales<kMixed, Args>,
                     task.scales + static_cast<int64_t>(chunk) * task.rows_padded + first_row, rows * 4, full);
          }
        }
        if (!kHasChunkWords<Args> || parts == 1) {
          from += kBlockBytes;
        } else {
          from += i % 2 == 0 ? first : kBlockBytes - first;
        }
        ring.Next();
      }
    }
  }
}

}  // namespace stoch::cuda::prefill
