// SPDX-License-Identifier: Apache-2.0
// What a block of the small-batch wgmma kernel (batch_wgmma.cu) works on, where it keeps it, and its weights' codes
// as they come in.
#pragma once

#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/sc/batch/outputs.cuh"
#include "kernels/cuda/sc/tensor_core/streams.h"

namespace stoch::cuda::batch {

inline constexpr int kGroups = 4;           // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kRows = 64 * kGroups;  // weight rows of a block
inline constexpr int kConsumers = 128 * kGroups;
inline constexpr int kThreads = kConsumers + 128;  // and a warpgroup, one thread of which copies
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 112;  // 4 * 112 + 24 <= 5 * 96, what a launch of kThreads gets
inline constexpr int kMaxStages = 15;
inline constexpr int kRingHeader = 256;  // the barriers

struct BatchArgs {
  BatchOutputs outputs;
  ScStreams streams;
  int stages = 0;
  const uint16_t* ranks = nullptr;  // [masks][levels] where they are not DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // opaque to the compiler (operand.cuh)
  // 0: split-K partials go to memory and every block makes outputs of them in the end. Otherwise so many blocks keep the
  // outputs of whole tiles to themselves, chunk by chunk, and the others leave them the sums of the last `helped`
  // chunks of each tile.
  int owners = 0;
  int helped = 0;
  int* flags = nullptr;  // [tiles][warps]: chunks whose sums are there; 0 between launches
  GridBarrier barrier;
};

// Sizes of a stage: the streams of some blocks of 16 dimensions, as many as 36 KB hold.
template <int kWords, int kHalves, int kTokens_>
struct Geometry {
  static constexpr int kTokens = kTokens_;
  static constexpr int kUnitBytes = kTokens * 16;
  static constexpr int kPartBytes = (4 * kWords + 2) * kUnitBytes;  // of a half of a block
  static constexpr int kBlocks = (kTokens <= 32 ? 4 : 2) / kHalves;
  static constexpr int kStageBytes = kBlocks * kHalves * kPartBytes;
};

// Shared memory of a block, as addresses: barriers, the ring, the rank table.
struct Shared {
  uint32_t base;
  int stages;
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxStages + i); }
  template <typename G>
  __device__ uint32_t stage(int i) const {
    return base + kRingHeader + static_cast<uint32_t>(i * G::kStageBytes);
  }
  template <typename G>
  __device__ uint32_t rank_table() const {  // from the start
    return kRingHeader + static_cast<uint32_t>(stages * G::kStageBytes);
  }
};

// The ring as one thread walks it.
struct RingPlace {
  int slot = 0;
  uint32_t phase = 0;
  __device__ void Next(int stages) {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// The work of a block: a run of chunks of one tile, which is 256 rows of one task and a tile of tokens. A block takes
// a range of the chunks of all tiles, numbered tile by tile, token tiles varying fastest.
struct Run {
  int tile;
  int group;  // first of the rows' groups
  int token_tile;
  int chunk;
  int end_chunk;
};
struct Work {
  int next;
  int end;
  int first_chunk = 0;  // of each tile's
  int chunks;
  __device__ explicit Work(const BatchArgs& args) {
    const int tiles = args.outputs.groups / (kRows / kGroupRows) * args.streams.token_tiles;
    int64_t index = blockIdx.x;
    int64_t blocks = gridDim.x;
    int64_t shares = tiles;
    int each = 1;
    chunks = args.streams.chunks - args.helped;
    if (args.owners == 0) {
      shares *= chunks;
    } else if (index < args.owners) {
      blocks = args.owners;
      each = chunks;
    } else {
      index -= args.owners;
      blocks -= args.owners;
      first_chunk = chunks;
      chunks = args.helped;
      shares *= chunks;
    }
    next = static_cast<int>(index * shares / blocks) * each;
    end = static_cast<int>((index + 1) * shares / blocks) * each;
  }
  __device__ bool done() const { return next >= end; }
  __device__ Run Take(const BatchArgs& args) {
    Run r;
    r.tile = next / chunks;
    r.token_tile = r.tile % args.streams.token_tiles;
    r.group = r.tile / args.streams.token_tiles * (kRows / kGroupRows);
    r.chunk = first_chunk + next % chunks;
    r.end_chunk = min(first_chunk + chunks, r.chunk + end - next);
    next += r.end_chunk - r.chunk;
    return r;
  }
};
__device__ __forceinline__ int BlocksOf(const ScStreams& s, int chunk) {
  return min(s.blocks_per_chunk, s.dim_blocks - chunk * s.blocks_per_chunk);
}

// The codes that a lane multiplies, a stage at a time: dimensions 4 (lane % 4) and on of rows lane / 4 and 8 + lane / 4
// of its warp's 16 in each block.
template <int kBlocks>
struct CodeReader {
  const BatchArgs& args;
  int warp;
  Work work;
  int chunk = 0;
  int end_chunk = 0;              // of the run
  int left = 0;                   // blocks of the chunk
  const uint8_t* from = nullptr;  // null: rows beyond the last
  uint32_t codes[kBlocks][2];

  __device__ CodeReader(const BatchArgs& a, int w) : args(a), warp(w), work(a) {
    Start();
    Next();
  }

  __device__ __forceinline__ void Start() {
    const Run run = work.Take(args);
    const ScKernelTask& task = BatchTaskOf(args.outputs, run.group);
    const int row = (run.group - task.first_block) * kGroupRows + warp * 16;
    const int64_t tile = static_cast<int64_t>(row / kTileRows) * args.streams.dim_blocks +
                         run.chunk * static_cast<int64_t>(args.streams.blocks_per_chunk);
    from = row < task.rows_padded ? task.codes + tile * kTileBytes + row % kTileRows * kTileDims + threadIdx.x % 32 * 4
                                  : nullptr;
    chunk = run.chunk;
    end_chunk = run.end_chunk;
    left = BlocksOf(args.streams, chunk);
  }

  // codes = those of the next stage; 0 beyond the end of a chunk. After the last stage anything.
  __device__ __forceinline__ void Next() {
    if (left <= 0) {
      if (++chunk < end_chunk) {
        left = BlocksOf(args.streams, chunk);
      } else {
        if (work.done()) return;
        Start();
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      codes[b][0] = codes[b][1] = 0;
      if (from != nullptr && b < left) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.u32 %0, [%1], %2;"
                       : "=r"(codes[b][i])
                       : "l"(from + b * kTileBytes + i * 8 * kTileDims), "l"(ReadOncePolicy()));
        }
      }
    }
    if (from != nullptr) from += min(left, kBlocks) * kTileBytes;
    left -= kBlocks;
  }
};

}  // namespace stoch::cuda::batch
