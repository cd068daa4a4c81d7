// SPDX-License-Identifier: Apache-2.0
// The kernel template of SC linears in tiles on mma.sync (sm_80 and newer): which tiles a block takes, its ring of
// pipeline stages in shared memory, and the epilogue. The loop body (Body) that multiplies a stage is closed_form.cuh,
// int8_form.cuh or streams.cuh.
//
// A warp multiplies 32 weight rows by all tokens of the tile. A stage holds one or two blocks of 16 dimensions (with
// streams of two halves, one half of a block): the token operands of the loop body, and the weights' codes. Every
// thread copies a share of each stage with cp.async, kStages - 2 stages ahead. Each warp waits on its own for a stage
// to be full or free, and warps may be a stage apart, so that some multiply while others make weight operands.
//
// Bits: sums of a chunk are integers, added in any order; they are scaled and added in chunk order, as in every SC
//       linear.
#pragma once

#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/copy_barrier.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/batch/outputs.cuh"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda::tiles {

inline constexpr int kWarpRows = 32;                         // weight rows of a warp
inline constexpr int kRowOperands = kWarpRows / kGroupRows;  // operands A of a warp, 16 weight rows each

// Arguments of the tile kernels. A tile is Shape::kRows weight rows of one task x Shape::kTokens tokens.
struct TileArgs {
  BatchOutputs outputs;
  // [token tiles][chunks][stages of a chunk] token operands, Body::kOperandBytes each.
  const uint8_t* operands = nullptr;
  int64_t tile_bytes = 0;         // bytes of `operands` from one token tile to the next
  int64_t chunk_bytes = 0;        // bytes of `operands` from one chunk to the next
  const float* scales = nullptr;  // [chunks][scale_stride] scales of tokens, 0 for padding tokens
  int scale_stride = 0;           // tokens of all tiles, padding included
  int row_tiles = 0;              // tiles of weight rows, of all tasks
  int token_tiles = 0;            // tiles of tokens
  int chunks = 0;
  int dim_blocks = 0;               // blocks of 16 dimensions of a row, padding included
  int blocks_per_chunk = 0;         // blocks of 16 dimensions of a chunk; a row's last chunk may have fewer
  const uint16_t* ranks = nullptr;  // [masks][levels] rank (ones of the stream) of each weight level; null: DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // ~0u as a value that the compiler does not know (tensor_core/operand.cuh)
  GridBarrier barrier;       // used by Shape::kPartials only
};

// Sizes of a kernel. kTokens: tokens of a tile. kPartials: split-K, the chunks of a tile are divided over blocks and
// their partials reduced at the end; else a block multiplies all chunks of one tile.
template <int kTokens_, int kWarps_, int kStages_, bool kPartials_>
struct Shape {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kStages = kStages_;
  static constexpr bool kPartials = kPartials_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * kWarpRows;           // weight rows of a tile
  static constexpr int kTokenTiles = kTokens / kTileTokens;  // operands B of a tile, 8 tokens each
  // Bytes of the scales in a stage: one for each row and token of the tile. None with kPartials: the reduction scales.
  static constexpr int kScaleBytes = kPartials ? 0 : (kRows + kTokens) * static_cast<int>(sizeof(float));
};

// Row tiles that consecutive blocks take before they go on to the next token tile: a wave of blocks then covers about
// as many rows as tokens, so that the L2 serves each operand many times.
inline constexpr int kSuperRowTiles = 8;

// A unit of work: one chunk of one tile.
struct Unit {
  int row_tile;
  int token_tile;
  int chunk;
};

// The unit of number `index`; units are numbered tile by tile. With kPartials a block takes an even, contiguous share
// of all units, else the units of one tile.
template <typename S>
__device__ __forceinline__ Unit UnitOf(const TileArgs& args, int index) {
  const int chunks = args.chunks;
  const int tile = index / chunks;
  Unit unit;
  unit.chunk = index % chunks;
  if constexpr (S::kPartials) {
    unit.row_tile = tile / args.token_tiles;
    unit.token_tile = tile % args.token_tiles;
  } else {
    const int per_super = kSuperRowTiles * args.token_tiles;
    const int first = tile / per_super * kSuperRowTiles;
    const int rows = min(kSuperRowTiles, args.row_tiles - first);
    const int rest = tile % per_super;
    unit.row_tile = first + rest % rows;
    unit.token_tile = rest / rows;
  }
  return unit;
}

// Number of blocks of 16 dimensions in a chunk.
__device__ __forceinline__ int BlocksOf(const TileArgs& args, int chunk) {
  return min(args.blocks_per_chunk, args.dim_blocks - chunk * args.blocks_per_chunk);
}

// One thread's position in the ring.
template <typename S>
struct RingPlace {
  int slot = 0;         // index of the stage
  uint32_t parity = 0;  // phase parity of the stage's full barrier; flips when the ring wraps around
  __device__ __forceinline__ void Next() {
    if (++slot < S::kStages) return;
    slot = 0;
    parity ^= 1;
  }
};

// Shared addresses of the barriers of the ring, two for each stage: `full` completes when the copies of all threads
// have arrived, `free` when all warps have read the stage.
template <typename S>
struct RingBarriers {
  uint32_t base;  // shared address of the first barrier
  __device__ __forceinline__ uint32_t full(int slot) const { return base + static_cast<uint32_t>(slot) * 16; }
  __device__ __forceinline__ uint32_t free(int slot) const { return full(slot) + 8; }
  // Initializes the barriers, by all threads of the block.
  __device__ __forceinline__ void Init() const {
    if (threadIdx.x < S::kStages) {
      InitCopyBarrier(full(static_cast<int>(threadIdx.x)), S::kThreads);
      InitCopyBarrier(free(static_cast<int>(threadIdx.x)), S::kWarps);
    }
    __syncthreads();
  }
};

// Issues the copies of units first to end - 1, stage by stage, in the order in which they are multiplied. A stage has
// Body::kOperandBytes of token operands, the weights' codes of Body::kBlocks blocks of 16 dimensions as
// [block][row][16] bytes, and, if it is the last of a chunk and without kPartials, the chunk's scales of the tile's
// rows and tokens.
template <typename S, typename Body>
class StageCopier {
 public:
  static constexpr int kCodes = Body::kOperandBytes;                             // byte offset of codes in a stage
  static constexpr int kScales = kCodes + Body::kBlocks * S::kRows * kTileDims;  // byte offset of scales in a stage
  static constexpr int kBytes = kScales + S::kScaleBytes;                        // bytes of a stage

  __device__ StageCopier(const TileArgs& args, uint32_t ring, const RingBarriers<S>& barriers, int first, int end)
      : args_(args), ring_(ring), barriers_(barriers), unit_(first), end_(end) {
    if (unit_ < end_) Start();
  }

  // Waits until the next place of the ring is free and issues this thread's copies of the next stage. Does nothing
  // after the last stage.
  __device__ __forceinline__ void Issue() {
    if (unit_ < end_) {
      const uint32_t to = ring_ + static_cast<uint32_t>(place_.slot * kBytes);
      WaitAtCopyBarrier(barriers_.free(place_.slot), place_.parity ^ 1);
#pragma unroll
      for (int i = 0; i < Body::kOperandBytes; i += S::kThreads * 16) {
        const int at = i + static_cast<int>(threadIdx.x) * 16;
        if (i + S::kThreads * 16 <= Body::kOperandBytes || at < Body::kOperandBytes) {
          CopyAsync16(to + at, operands_ + at);
        }
      }
      static_assert(S::kRows == S::kThreads);  // a thread copies the codes of one row
#pragma unroll
      for (int b = 0; b < Body::kBlocks; ++b) {
        const bool have = has_row_ && b < blocks_;
        CopyAsync16(to + kCodes + (b * S::kRows + threadIdx.x) * kTileDims, codes_ + (have ? b * kTileBytes : 0), have);
      }
      operands_ += Body::kOperandBytes;
      const uint32_t full = barriers_.full(place_.slot);
      place_.Next();
      half_ = half_ + 1 == Body::kHalves ? 0 : half_ + 1;
      if (half_ == 0) {
        if (has_row_) codes_ += Body::kBlocks * kTileBytes;
        blocks_ -= Body::kBlocks;
        if (blocks_ <= 0) {
          if constexpr (!S::kPartials) CopyScales(to + kScales);
          if (++unit_ < end_) Start();
        }
      }
      ArriveWithCopies(full);
    }
  }

 private:
  __device__ void Start() {
    const Unit unit = UnitOf<S>(args_, unit_);
    const int group = unit.row_tile * (S::kRows / kGroupRows);
    const ScKernelTask& task = BatchTaskOf(args_.outputs, group);
    const int row = (group - task.first_block) * kGroupRows + static_cast<int>(threadIdx.x);
    operands_ = args_.operands + unit.token_tile * args_.tile_bytes + unit.chunk * args_.chunk_bytes;
    has_row_ = row < task.rows_padded;
    codes_ = task.codes;
    if (has_row_) {
      codes_ += (static_cast<int64_t>(row / kTileRows) * args_.dim_blocks + unit.chunk * args_.blocks_per_chunk) *
                    kTileBytes +
                row % kTileRows * kTileDims;
    }
    blocks_ = BlocksOf(args_, unit.chunk);
    // Padding rows may take any scale, since their outputs are not stored.
    row_scales_ = task.scales + static_cast<int64_t>(unit.chunk) * task.rows_padded + (has_row_ ? row : 0);
    token_scales_ = args_.scales + static_cast<int64_t>(unit.chunk) * args_.scale_stride + unit.token_tile * S::kTokens;
  }

  // Copies the chunk's scales to shared address `to`: [kRows] of the weight rows, then [kTokens] of the tokens.
  __device__ __forceinline__ void CopyScales(uint32_t to) {
    CopyAsync4(to + threadIdx.x * 4, row_scales_, true);
    if (threadIdx.x < S::kTokens) CopyAsync4(to + (S::kRows + threadIdx.x) * 4, token_scales_ + threadIdx.x, true);
  }

  const TileArgs& args_;
  uint32_t ring_;  // shared address of the ring's first stage
  RingBarriers<S> barriers_;
  int unit_;                             // unit of the next stage
  int end_;                              // end of the block's units
  RingPlace<S> place_;                   // place of the next stage
  const uint8_t* operands_ = nullptr;    // token operands of the next stage
  const uint8_t* codes_ = nullptr;       // this thread's 16 bytes of codes of the next stage
  bool has_row_ = false;                 // whether this thread's weight row exists in the task, padding included
  int blocks_ = 0;                       // blocks of 16 dimensions of the chunk that are not copied yet
  int half_ = 0;                         // index of the half of the streams that the next stage holds
  const float* row_scales_ = nullptr;    // scale of this thread's weight row in the chunk
  const float* token_scales_ = nullptr;  // scales of the tile's tokens in the chunk
};

// A lane's accumulators of a chunk in the layout of mma.sync: [operand of 16 rows][tile of 8 tokens][4].
template <typename S>
using Sums = int32_t[kRowOperands][S::kTokenTiles][4];

// y = y + scaled sums of a chunk, by a warp. `scales`: the chunk's scales in shared memory, part of its last stage.
template <typename S>
__device__ __forceinline__ void AddChunk(const float* scales, float gain, const Sums<S>& sums,
                                         float (&y)[kRowOperands][S::kTokenTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int m = 0; m < kRowOperands; ++m) {
    const float* const b = scales + warp * kWarpRows + m * kGroupRows + lane / 4;
    const float b0 = b[0], b1 = b[8];
#pragma unroll
    for (int n = 0; n < S::kTokenTiles; ++n) {
      const float2 a = *reinterpret_cast<const float2*>(scales + S::kRows + n * kTileTokens + lane % 4 * 2);
      y[m][n][0] = y[m][n][0] + BipolarProduct(sums[m][n][0], gain, a.x, b0);
      y[m][n][1] = y[m][n][1] + BipolarProduct(sums[m][n][1], gain, a.y, b0);
      y[m][n][2] = y[m][n][2] + BipolarProduct(sums[m][n][2], gain, a.x, b1);
      y[m][n][3] = y[m][n][3] + BipolarProduct(sums[m][n][3], gain, a.y, b1);
    }
  }
}

// The main loop of the kernel and, without kPartials, its epilogue. Body::Multiply adds the products of a stage to the
// accumulators; with the last stage of a chunk it also adds whatever it still holds of the chunk. `ring`: dynamic
// shared memory of kStages stages.
template <typename S, typename Body>
__device__ __forceinline__ void RunTiles(const TileArgs& args, Body& body, uint8_t* ring) {
  using Copier = StageCopier<S, Body>;
  __shared__ uint64_t barrier_words[2 * S::kStages];
  const RingBarriers<S> barriers{SharedAddress(barrier_words)};
  barriers.Init();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int chunks = args.chunks;
  int first = static_cast<int>(blockIdx.x) * chunks;
  int end = first + chunks;
  if constexpr (S::kPartials) {
    const int64_t units = static_cast<int64_t>(args.row_tiles) * args.token_tiles * chunks;
    first = static_cast<int>(blockIdx.x * units / gridDim.x);
    end = static_cast<int>((blockIdx.x + int64_t{1}) * units / gridDim.x);
  }
  WaitForPrevious();
  Copier copier(args, SharedAddress(ring), barriers, first, end);
#pragma unroll 1
  for (int i = 0; i + 2 < S::kStages; ++i) copier.Issue();

  float y[S::kPartials ? 1 : kRowOperands][S::kPartials ? 1 : S::kTokenTiles][4] = {};
  RingPlace<S> place;
#pragma unroll 1
  for (int index = first; index < end; ++index) {
    const int chunk = index % chunks;
    const int stages = (BlocksOf(args, chunk) + Body::kBlocks - 1) / Body::kBlocks * Body::kHalves;
    Sums<S> sums = {};
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      copier.Issue();
      WaitAtCopyBarrier(barriers.full(place.slot), place.parity);
      const uint8_t* const stage = ring + place.slot * Copier::kBytes;
      body.Multiply(stage, i, i + 1 == stages, warp, lane, sums);
      if constexpr (!S::kPartials) {
        if (i + 1 == stages)
          AddChunk<S>(reinterpret_cast<const float*>(stage + Copier::kScales), args.outputs.gain, sums, y);
      }
      __syncwarp();
      if (lane == 0) ArriveAtCopyBarrier(barriers.free(place.slot));
      place.Next();
    }
    if constexpr (S::kPartials) {
      const Unit unit = UnitOf<S>(args, index);
      const int group = unit.row_tile * (S::kRows / kGroupRows) + warp * kRowOperands;
#pragma unroll
      for (int m = 0; m < kRowOperands; ++m) {
#pragma unroll
        for (int n = 0; n < S::kTokenTiles; ++n) {
          StorePartials(args.outputs, chunk, (group + m) * args.outputs.tiles + unit.token_tile * S::kTokenTiles + n,
                        lane, sums[m][n][0], sums[m][n][1], sums[m][n][2], sums[m][n][3]);
        }
      }
    }
  }
  if constexpr (!S::kPartials) {
    const Unit unit = UnitOf<S>(args, first);
    const int group = unit.row_tile * (S::kRows / kGroupRows);
    BatchItem item;
    item.task = &BatchTaskOf(args.outputs, group);
#pragma unroll
    for (int m = 0; m < kRowOperands; ++m) {
      item.row = (group - item.task->first_block + m) * kGroupRows + warp * kWarpRows + lane / 4;
#pragma unroll
      for (int n = 0; n < S::kTokenTiles; ++n) {
        item.token = unit.token_tile * S::kTokens + n * kTileTokens + lane % 4 * 2;
        StoreOutputs(args.outputs, item, make_float4(y[m][n][0], y[m][n][1], y[m][n][2], y[m][n][3]));
      }
    }
  }
}

// RunTiles and, with kPartials, the grid barrier and the split-K reduction. `memory`: the block's dynamic shared
// memory, which ends with `ring`; the reduction uses all of it.
template <typename S, typename Body>
__device__ __forceinline__ void RunKernel(const TileArgs& args, uint8_t* memory, uint8_t* ring, Body& body) {
  static_assert(S::kStages * StageCopier<S, Body>::kBytes <= 99 * 1024);
  RunTiles<S>(args, body, ring);
  if constexpr (S::kPartials) {
    WaitForAllCopies();
    __syncthreads();  // no warp reads the ring any more, so the reduction may use it
    ReduceManyTokens<S::kWarps, static_cast<int>(kTileCombineBytes)>(args.outputs, memory,
                                                                     [&] { args.barrier.Wait(); });
  }
}

// Computes an SC linear in tiles: without kPartials by one block per tile, else by a persistent kernel of at most one
// block per SM. Form has the type Shape; Fill(args, memory), which makes tables at the beginning of dynamic shared
// memory and returns their end, where the ring begins; and MakeBody(args, memory), which returns the loop body that
// reads the tables.
template <typename Form>
__global__ void __launch_bounds__(Form::Shape::kThreads, 1) TilesKernel(const __grid_constant__ TileArgs args) {
  extern __shared__ __align__(256) uint8_t memory[];  // tables, then the ring
  StartNext();
  uint8_t* const ring = Form::Fill(args, memory);
  auto body = Form::MakeBody(args, memory);
  RunKernel<typename Form::Shape>(args, memory, ring, body);
}

using Kernel = void (*)(TileArgs);
// The kernel of int8_tiles.cu, which uses no binary mma, for tiles of `tile_tokens` tokens; split: with kPartials.
// Requires: split if tile_tokens is kTileTokensNarrow.
Kernel Int8Kernel(int tile_tokens, bool split);

}  // namespace stoch::cuda::tiles
