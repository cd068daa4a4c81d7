// SPDX-License-Identifier: Apache-2.0
// The frame of SC linears in tiles on mma.sync (sm_80 and newer): the work of a block, the ring of its operands and the
// outputs.
//
// A warp multiplies 32 weight rows by all tokens of the tile. A stage holds one or two blocks of 16 dimensions (a
// half of one, where streams have two): what the loop body needs of the tokens, and the weights' codes. Every thread copies a share
// of a stage with cp.async, kStages - 2 stages ahead. Warps wait for data and for free places alone, up to a stage apart from
// each other, so that some multiply while others make operands of weights.
//
// Bits: chunk sums are integers in any order; they are scaled and added in chunk order, as every SC linear does it.
#pragma once

#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/copy_barrier.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/batch/outputs.cuh"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda::tiles {

inline constexpr int kWarpRows = 32;  // weight rows of a warp: two operands of 16
inline constexpr int kRowOperands = kWarpRows / kGroupRows;

struct TileArgs {
  BatchOutputs outputs;
  // Token operands as the loop body reads them, [token tile][chunk][stage], and scales [chunks][scale_stride].
  const uint8_t* operands = nullptr;
  int64_t tile_bytes = 0;
  int64_t chunk_bytes = 0;
  const float* scales = nullptr;
  int scale_stride = 0;
  int row_tiles = 0;
  int token_tiles = 0;
  int chunks = 0;
  int dim_blocks = 0;  // of 16 dimensions
  int blocks_per_chunk = 0;
  const uint16_t* ranks = nullptr;  // [masks][levels] where they are not DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // opaque to the compiler (tensor_core/operand.cuh)
  GridBarrier barrier;       // of launches with partials
};

// kTokens: of a tile. kPartials: chunks of a tile are dealt over blocks, and their sums are added in the end.
template <int kTokens_, int kWarps_, int kStages_, bool kPartials_>
struct Shape {
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kStages = kStages_;
  static constexpr bool kPartials = kPartials_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kTokenTiles = kTokens / kTileTokens;
  static constexpr int kScaleBytes = kPartials ? 0 : (kRows + kTokens) * static_cast<int>(sizeof(float));
};

// Row tiles that follow each other while tokens stay: a wave of blocks is about as many rows as tokens, so that the L2
// serves each operand many times.
inline constexpr int kSuperRowTiles = 8;

// One chunk of one tile.
struct Unit {
  int row_tile;
  int token_tile;
  int chunk;
};

// The chunks of a block, numbered tile by tile. With partials an even share of all; else those of one tile.
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

// Blocks of 16 dimensions of a chunk.
__device__ __forceinline__ int BlocksOf(const TileArgs& args, int chunk) {
  return min(args.blocks_per_chunk, args.dim_blocks - chunk * args.blocks_per_chunk);
}

// The ring as one thread walks it.
template <typename S>
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++slot < S::kStages) return;
    slot = 0;
    parity ^= 1;
  }
};

// Shared addresses of two barriers a stage: all threads' copies are there; all warps have read it.
template <typename S>
struct RingBarriers {
  uint32_t base;
  __device__ __forceinline__ uint32_t full(int slot) const { return base + static_cast<uint32_t>(slot) * 16; }
  __device__ __forceinline__ uint32_t free(int slot) const { return full(slot) + 8; }
  // By all threads.
  __device__ __forceinline__ void Init() const {
    if (threadIdx.x < S::kStages) {
      InitCopyBarrier(full(static_cast<int>(threadIdx.x)), S::kThreads);
      InitCopyBarrier(free(static_cast<int>(threadIdx.x)), S::kWarps);
    }
    __syncthreads();
  }
};

// Issues the copies of stages in the order in which they are multiplied. A stage: Body::kOperandBytes of the tokens, the
// codes of Body::kBlocks blocks [block][row][16], and with a chunk's last stage its scales.
template <typename S, typename Body>
class StageCopier {
 public:
  static constexpr int kCodes = Body::kOperandBytes;
  static constexpr int kScales = kCodes + Body::kBlocks * S::kRows * kTileDims;
  static constexpr int kBytes = kScales + S::kScaleBytes;

  __device__ StageCopier(const TileArgs& args, uint32_t ring, const RingBarriers<S>& barriers, int first, int end)
      : args_(args), ring_(ring), barriers_(barriers), unit_(first), end_(end) {
    if (unit_ < end_) Start();
  }

  // The next stage, once its place is free, or nothing after the last one.
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
    // Rows beyond the last take any scale.
    row_scales_ = task.scales + static_cast<int64_t>(unit.chunk) * task.rows_padded + (has_row_ ? row : 0);
    token_scales_ = args_.scales + static_cast<int64_t>(unit.chunk) * args_.scale_stride + unit.token_tile * S::kTokens;
  }

  // Scales of the weights' rows, then of the tokens.
  __device__ __forceinline__ void CopyScales(uint32_t to) {
    CopyAsync4(to + threadIdx.x * 4, row_scales_, true);
    if (threadIdx.x < S::kTokens) CopyAsync4(to + (S::kRows + threadIdx.x) * 4, token_scales_ + threadIdx.x, true);
  }

  const TileArgs& args_;
  uint32_t ring_;
  RingBarriers<S> barriers_;
  int unit_;
  int end_;
  RingPlace<S> place_;
  const uint8_t* operands_ = nullptr;
  const uint8_t* codes_ = nullptr;
  bool has_row_ = false;
  int blocks_ = 0;  // of the chunk, from this stage on
  int half_ = 0;
  const float* row_scales_ = nullptr;
  const float* token_scales_ = nullptr;
};

// Sums of a warp in the order of mma.sync: operand m of 16 rows, 8 tokens n.
template <typename S>
using Sums = int32_t[kRowOperands][S::kTokenTiles][4];

// Adds a chunk's sums to the outputs. `scales`: shared memory, of the stage that came last.
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

// The kernel. Body::Multiply adds the products of a stage, all that is left of a chunk with its last one.
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

// RunTiles, and what becomes of partial sums. `memory`: all of the block's shared memory, of which `ring` is the end.
template <typename S, typename Body>
__device__ __forceinline__ void RunKernel(const TileArgs& args, uint8_t* memory, uint8_t* ring, Body& body) {
  static_assert(S::kStages * StageCopier<S, Body>::kBytes <= 99 * 1024);
  RunTiles<S>(args, body, ring);
  if constexpr (S::kPartials) {
    WaitForAllCopies();
    __syncthreads();  // the ring is free
    ReduceManyTokens<S::kWarps, static_cast<int>(kTileCombineBytes)>(args.outputs, memory,
                                                                     [&] { args.barrier.Wait(); });
  }
}

// Form: its Shape, Fill(args, memory), which makes its tables at the beginning of the block's shared memory and returns
// their end, and MakeBody(args, memory), the loop body over them.
template <typename Form>
__global__ void __launch_bounds__(Form::Shape::kThreads, 1) TilesKernel(const __grid_constant__ TileArgs args) {
  extern __shared__ __align__(256) uint8_t memory[];  // tables, then the ring
  StartNext();
  uint8_t* const ring = Form::Fill(args, memory);
  auto body = Form::MakeBody(args, memory);
  RunKernel<typename Form::Shape>(args, memory, ring, body);
}

using Kernel = void (*)(TileArgs);
// The kernel of int8_tiles.cu, which holds no binary product. Requires: split where tile_tokens is kTileTokensNarrow.
Kernel Int8Kernel(int tile_tokens, bool split);

}  // namespace stoch::cuda::tiles
