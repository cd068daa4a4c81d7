// SPDX-License-Identifier: Apache-2.0
// The small-batch wgmma kernel (batch_wgmma.cu): its arguments, the split of work over blocks, the layout of shared
// memory, and how consumers load weights' codes.
#pragma once

#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/sc/batch/outputs.cuh"
#include "kernels/cuda/sc/tensor_core/streams.h"

namespace stoch::cuda::batch {

inline constexpr int kGroups = 4;           // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kRows = 64 * kGroups;  // weight rows of a block
inline constexpr int kConsumers = 128 * kGroups;
inline constexpr int kThreads = kConsumers + 128;  // consumers, and a producer warpgroup of which one thread works
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 112;  // 4 * 112 + 24 <= 5 * 96: a launch of kThreads has 96 a thread
inline constexpr int kMaxStages = 15;           // stages of the ring, at most
inline constexpr int kRingHeader = 256;         // bytes of shared memory for the ring's barriers

struct BatchArgs {
  BatchOutputs outputs;
  ScStreams streams;
  int stages = 0;                   // stages of the ring
  const uint16_t* ranks = nullptr;  // [masks][levels] rank (ones of the stream) of each weight level; null: DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // ~0u as a value that the compiler does not know (operand.cuh)
  // Number of owner blocks. 0: all blocks store split-K partials and reduce them after a grid barrier. > 0: the first
  // `owners` blocks accumulate whole tiles in registers, all but the last `helped` chunks; the other blocks (helpers)
  // store partials of these chunks, which the owner of the tile then adds.
  int owners = 0;
  int helped = 0;        // chunks at the end of every tile that helpers multiply; 0 without owners
  int* flags = nullptr;  // [tiles][consumer warps] number of chunks whose partials are stored; 0 between launches
  GridBarrier barrier;
};

// Sizes of a stage: the streams of kBlocks blocks of 16 dimensions, up to 36 KB, or 54 KB with 96 tokens.
template <int kWords, int kHalves, int kTokens_>
struct Geometry {
  static constexpr int kTokens = kTokens_;
  static constexpr int kUnitBytes = kTokens * 16;
  static constexpr int kPartBytes = (4 * kWords + 2) * kUnitBytes;   // bytes of one half of a block's streams
  static constexpr int kBlocks = (kTokens <= 32 ? 4 : 2) / kHalves;  // blocks of 16 dimensions of a stage
  static constexpr int kStageBytes = kBlocks * kHalves * kPartBytes;
};

// Layout of a block's dynamic shared memory: full barriers, empty barriers, the stages of the ring, then the rank table
// or thermometers. full(i), empty(i) and stage(i) are shared addresses.
struct Shared {
  uint32_t base;  // shared address of the first full barrier
  int stages;     // stages of the ring
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxStages + i); }
  template <typename G>
  __device__ uint32_t stage(int i) const {
    return base + kRingHeader + static_cast<uint32_t>(i * G::kStageBytes);
  }
  // Byte offset of the table from the beginning of shared memory.
  template <typename G>
  __device__ uint32_t rank_table() const {
    return kRingHeader + static_cast<uint32_t>(stages * G::kStageBytes);
  }
};

// One thread's position in the ring.
struct RingPlace {
  int slot = 0;        // index of the stage
  uint32_t phase = 0;  // phase parity of the stage's full barrier; flips when the ring wraps around
  __device__ void Next(int stages) {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Consecutive chunks of one tile; a tile is 256 weight rows of one task x a tile of tokens.
struct Run {
  int tile;        // number of the tile; token tiles vary fastest
  int group;       // number of the first group of 16 rows (BatchOutputs::groups)
  int token_tile;  // number of the tile of tokens
  int chunk;       // first chunk of the run
  int end_chunk;   // last chunk of the run + 1
};
// The work of a block, run by run: a contiguous range of the chunks of all tiles, numbered tile by tile. Owners take
// whole tiles without the last `helped` chunks, helpers only those chunks (BatchArgs::owners).
struct Work {
  int next;             // number of the next chunk
  int end;              // end of the block's range
  int first_chunk = 0;  // first chunk of a tile that this kind of block takes
  int chunks;           // chunks of a tile that this kind of block takes
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
// Number of blocks of 16 dimensions in a chunk.
__device__ __forceinline__ int BlocksOf(const ScStreams& s, int chunk) {
  return min(s.blocks_per_chunk, s.dim_blocks - chunk * s.blocks_per_chunk);
}

// Loads the weights' codes that a lane multiplies, one stage at a time: of each block of 16 dimensions, dimensions 4 *
// (lane % 4) to 4 * (lane % 4) + 3 of rows lane / 4 and 8 + lane / 4 of the warp's 16 rows.
template <int kBlocks>
struct CodeReader {
  const BatchArgs& args;
  int warp;                       // index of the consumer warp
  Work work;                      // runs after the current one
  int chunk = 0;                  // chunk of the next stage
  int end_chunk = 0;              // end of the current run's chunks
  int left = 0;                   // blocks of 16 dimensions of the chunk that are not loaded yet
  const uint8_t* from = nullptr;  // address of the next stage's codes; null: rows past rows_padded
  uint32_t codes[kBlocks][2];     // [block][row lane / 4 or 8 + lane / 4] four codes

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

  // Loads the next stage's codes into `codes`, 0 for blocks past the end of the chunk. After the last stage `codes` is
  // undefined.
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
