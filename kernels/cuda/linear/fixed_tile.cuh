// SPDX-License-Identifier: Apache-2.0
// Fixed-point linears of many rows of x. A block computes 128 weight rows x 64 rows of x: each warp makes the bytes of
// its 16 weight rows in registers and multiplies them with all three digits of x, which are staged in shared memory.
// Products is who multiplies: mma.sync of a warp (fixed_tile.cu) or wgmma of a warpgroup (hopper/fixed_wgmma.cu).
//
// Products of the same power of 256 share an accumulator, so an output has four accumulators. These fill the registers,
// so one block runs per SM.
#pragma once

#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/linear/fixed_kernels.h"
#include "kernels/cuda/linear/fixed_operands.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/fixed_point.h"
#include "kernels/plan/linear/float.h"

namespace stoch::cuda::fixed {

inline constexpr int kThreads = 256;
inline constexpr int kTileRows = kThreads / 32 * 16;
// Powers of 256 that occur when the two bytes of a weight meet the three digits of x.
inline constexpr int kLevels = kDigits + 1;
// Pipeline stages in shared memory, each for kBlockCols columns. Four stages allow copies for two stages ahead to be
// issued while products still read the current one.
inline constexpr int kStages = 4;
inline constexpr int kStageBytes = kBlockSteps * kTileColumns * kStepCols;
inline constexpr int kSums = kTileTokens / 2;  // accumulators of a thread for one power of 256
// Number of blocks of kBlockCols columns by which L2 prefetches of weights run ahead.
inline constexpr int kAskedBlocks = 4;
// Consecutive tiles of x that are multiplied with the same weight rows: as many as leave room for the weights in the
// L2.
inline constexpr int kGroupTiles = 16;

// Prefetches `blocks` blocks of columns of a warp's 16 weight rows into the L2. weights: their address. Called by one
// lane.
__device__ __forceinline__ void AskForWeights(const uint8_t* weights, int blocks) {
#if __CUDA_ARCH__ >= 900
  BulkPrefetch(weights, static_cast<uint32_t>(blocks) * (kBlockSteps * kWeightStepBytes));
#else
  static_cast<void>(weights);  // bulk prefetch needs sm_90; other GPUs do without
  static_cast<void>(blocks);
#endif
}

// The order in which blocks take tiles: tiles of x vary fastest within a group of kGroupTiles, then weight rows, then
// groups. Blocks that run at the same time thus share both x and weights through the L2.
struct Tiles {
  // Number of tiles along the rows of x, and along the weight rows.
  int64_t of_x;
  int64_t of_rows;
  __host__ __device__ explicit Tiles(const FixedArgs& args)
      : of_x((args.rows + kTileTokens - 1) / kTileTokens), of_rows((args.w.rows + kTileRows - 1) / kTileRows) {}
  __host__ __device__ int64_t count() const { return of_x * of_rows; }

  struct Place {
    // Index of the tile along x, and along the weight rows.
    int64_t x, rows;
    bool is_first;  // first tile of a group for these weight rows: its block prefetches them into the L2
  };
  // The tile that is number `index` in the order.
  __device__ Place At(int64_t index) const {
    const int64_t group = index / (kGroupTiles * of_rows);
    const int64_t in_group = index - group * kGroupTiles * of_rows;
    const int64_t size = min(static_cast<int64_t>(kGroupTiles), of_x - group * kGroupTiles);
    return {group * kGroupTiles + in_group % size, in_group / size, in_group % size == 0};
  }
};

// Copies x of the block's tiles, one tile after the other, to the pipeline stages in shared memory.
struct TileCopies {
  const FixedArgs& args;
  const Tiles& tiles;
  uint32_t stages;  // shared address of stage 0
  // The next tile to begin.
  int64_t tile = blockIdx.x;
  int left = 0;  // blocks of columns of the current tile that are not copied yet
  // Stage that the next copy goes to.
  uint32_t stage = 0;
  // Global address that this thread copies from next.
  const int8_t* x = nullptr;

  // Issues the copy of the next block of columns to the next stage; commits an empty group after the last tile.
  __device__ __forceinline__ void Next() {
    if (left == 0 && tile < tiles.count()) {
      x = args.x.bytes + tiles.At(tile).x * args.x.steps * (kTileColumns * kStepCols) + threadIdx.x * 16;
      left = static_cast<int>(args.x.steps / kBlockSteps);
      tile += gridDim.x;
    }
    if (left > 0) {
      const uint32_t to = stages + stage * kStageBytes + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < kStageBytes / 16 / kThreads; ++i) CopyAsync16(to + i * kThreads * 16, x + i * kThreads * 16);
      x += kStageBytes;
      stage = (stage + 1) % kStages;
      --left;
    }
    CommitCopies();
  }
  static_assert(kStageBytes % (16 * kThreads) == 0);
};

// Combines the sums of each power of 256 and stores this thread's outputs of a tile. scales: of this thread's two
// weight rows.
__device__ __forceinline__ void WriteTile(const FixedArgs& args, const Tiles::Place& at, const float (&scales)[2],
                                          const int32_t (&sums)[kLevels][kSums]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first = at.rows * kTileRows + warp * FixedWeightView::kGroupRows;
  const double weight_units[2] = {FixedUnit(scales[0]), FixedUnit(scales[1])};
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int64_t token = at.x * kTileTokens + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int64_t row = first + lane / 4 + i / 2 % 2 * 8;
    if (token >= args.rows || row >= args.w.rows) continue;
    int64_t sum = 0;
#pragma unroll
    for (int level = kLevels - 1; level >= 0; --level) sum = sum * 256 + sums[level][i];
    const float dot = FixedResult(sum, args.x.units[token], weight_units[i / 2 % 2]);
    float* to = args.out.data + token * args.out.stride + row;
    const float y = args.out.add ? *to + dot : dot;
    if (!IsFinite(y)) args.reporter.Report();
    *to = y;
  }
}

// y = f(x) @ w^T. Persistent blocks, one per SM; block b takes tiles b, b + gridDim.x, ... Loads run across tile
// boundaries: the next tile's operands are in flight while the outputs of a tile are stored.
template <typename T, typename Products>
__global__ void __launch_bounds__(kThreads, 1) FixedTileKernel(const FixedArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];  // pipeline stages of x, [kStages][kStageBytes]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Tiles tiles(args);
  const int64_t count = tiles.count();
  const int blocks = static_cast<int>(args.x.steps / kBlockSteps);
  const int64_t last_group = (args.w.rows - 1) / FixedWeightView::kGroupRows;

  // x is copied to shared memory asynchronously, two blocks of columns ahead.
  const uint32_t stages = SharedAddress(shared);
  TileCopies copies{args, tiles, stages};

  // Weights are loaded to registers one block of columns ahead, and prefetched into the L2 a few more blocks ahead.
  const uint8_t* weights = nullptr;
  const float* scales_at = nullptr;
  bool asks = false;
  const auto place = [&](int64_t tile) {
    const Tiles::Place at = tiles.At(tile);
    const int64_t group = min(at.rows * (kTileRows / FixedWeightView::kGroupRows) + warp, last_group);
    weights = static_cast<const uint8_t*>(args.w.data) + group * args.x.steps * kWeightStepBytes + lane * 16;
    scales_at = args.w.scales + group * FixedWeightView::kGroupRows + lane / 4;
    asks = at.is_first && lane == 0;
    if (asks) AskForWeights(weights, min(blocks, 1 + kAskedBlocks));
  };
  uint4 packed[kBlockSteps][2];
  const auto load = [&](int step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      packed[step][r] =
          __ldg(reinterpret_cast<const uint4*>(weights + step * kWeightStepBytes + r * (kWeightStepBytes / 2)));
    }
  };

  place(blockIdx.x);
  copies.Next();
  copies.Next();
#pragma unroll
  for (int step = 0; step < kBlockSteps; ++step) load(step);
  uint32_t stage = 0;
  uint32_t low[2][4];
  uint32_t high[2][4];
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < count; tile += gridDim.x) {
    const float scales[2] = {scales_at[0], scales_at[8]};
    int32_t sums[kLevels][kSums];
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[level][i] = 0;
    }
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const uint32_t from = stages + stage * kStageBytes;
      stage = (stage + 1) % kStages;
#pragma unroll
      for (int step = 0; step < kBlockSteps; ++step) {
        uint32_t(&a_low)[4] = low[step % 2];
        uint32_t(&a_high)[4] = high[step % 2];
        MakeOperands<T>(packed[step], scales, a_low, a_high);
        // Work that does not need this step's x is done before the barrier, or after the products have been issued.
        if (step == 0) {
          WaitForCopies<1>();
          Products::ShowCopies();
          __syncthreads();
        } else {
          load(step);
        }
        const uint32_t at = from + step * (kTileColumns * kStepCols);
        Products::Multiply(a_low, a_high, at, sums);
        if (step == 0) {
          copies.Next();
          if (block + 1 < blocks) {
            weights += kBlockSteps * kWeightStepBytes;
            if (asks && block + 1 + kAskedBlocks < blocks) {
              AskForWeights(weights + kAskedBlocks * kBlockSteps * kWeightStepBytes, 1);
            }
          } else if (tile + gridDim.x < count) {
            place(tile + gridDim.x);
          }
          load(0);
        }
      }
    }
    Products::Finish(sums);
    WriteTile(args, tiles.At(tile), scales, sums);
  }
}

template <typename Products>
void LaunchTiles(DeviceContext& ctx, const FixedArgs& args) {
  const auto kernel =
      args.w.dtype == DType::kF16 ? FixedTileKernel<__half, Products> : FixedTileKernel<__nv_bfloat16, Products>;
  constexpr size_t kShared = static_cast<size_t>(kStages) * kStageBytes;
  static_assert(kShared == kFixedTileBytes);
  AllowShared(ctx, kernel, kShared);
  const int64_t blocks = std::min<int64_t>(Tiles(args).count(), ctx.traits.sm_count);
  kernel<<<static_cast<unsigned>(blocks), kThreads, kShared, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("FixedTileKernel");
}

}  // namespace stoch::cuda::fixed
