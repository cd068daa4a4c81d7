// The end of a decode kernel: products of chunks, which many blocks wrote, become outputs.
#pragma once

#include "kernels/cuda/sc_decode_args.cuh"
#include "kernels/math/elementary.h"

namespace stoch::cuda::decode {

// y of 32 rows and one token from products [chunks] apart by `rows`, by one warp.
__device__ __forceinline__ float SumChunks(const float* from, int64_t rows, int chunks) {
  constexpr int kInFlight = 32;
  float y = 0.0f;
  for (int c = 0; c < chunks; c += kInFlight) {
    float p[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) p[k] = c + k < chunks ? __ldcg(from + (c + k) * rows) : 0.0f;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (c + k < chunks) y = y + p[k];
    }
  }
  return y;
}

// An item's 32 outputs of one token, a lane each.
struct Output {
  float* at = nullptr;  // null: padding
  float old = 0;
};
__device__ __forceinline__ Output OutputOf(const DecodeArgs& args, int item, int lane) {
  const int row_block = item % args.row_blocks;
  const Task& task = TaskOf(args, row_block);
  const int row = (row_block - task.first_block) * kTileRows + lane;
  Output output;
  if (item >= args.row_blocks * args.tokens || row >= task.rows) return output;
  output.at = task.out + item / args.row_blocks * task.out_stride + row;
  output.old = task.add ? *output.at : 0.0f;
  return output;
}
__device__ __forceinline__ void Store(const DecodeArgs& args, const Output& output, bool add, float y) {
  if (output.at == nullptr) return;
  y = add ? output.old + y : y;
  if (!IsFinite(y)) args.reporter.Report();
  *output.at = y;
}

// Sums products in chunk order: items of 32 rows and a token, shared out over blocks and in each over its warps. With
// many chunks and few items, all warps of a block fetch one item's products and one adds them up.
// Requires: `shared` holds kCombineChunks * 32 floats.
template <int kWarps>
__device__ void Combine(const DecodeArgs& args, uint8_t* shared) {
  constexpr int kManyChunks = 64;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t rows = static_cast<int64_t>(args.row_blocks) * kTileRows;
  const int items = args.row_blocks * args.tokens;
  const int blocks = static_cast<int>(gridDim.x);
  const int chunks = static_cast<int>(args.dims.chunks);
  const bool together = chunks > kManyChunks && items <= 4 * blocks;
  const int step = together ? blocks : kWarps * blocks;
  int item = static_cast<int>(blockIdx.x) + (together ? 0 : warp * blocks);
  const bool add = args.tasks[0].add;

  // What is added to does not depend on other blocks: it is here before they are.
  Output output = OutputOf(args, item, lane);
  args.barrier.Wait();
  auto* products = reinterpret_cast<float(*)[kWarp]>(shared);
  for (; item < items; item += step, output = OutputOf(args, item, lane)) {
    const float* from =
        args.products + item / args.row_blocks * args.dims.chunks * rows + item % args.row_blocks * kTileRows + lane;
    if (!together) {
      Store(args, output, add, SumChunks(from, rows, chunks));
      continue;
    }
    float y = 0.0f;
    for (int first = 0; first < chunks; first += kCombineChunks) {
      const int count = min(kCombineChunks, chunks - first);
      // All loads before the first store, whatever the count: a loop would wait for memory once a turn.
      constexpr int kLoads = (kCombineChunks + kWarps - 1) / kWarps;
      float p[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int c = warp + k * kWarps;
        p[k] = c < count ? __ldcg(from + (first + c) * rows) : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        if (warp + k * kWarps < count) products[warp + k * kWarps][lane] = p[k];
      }
      __syncthreads();
      if (warp == 0) {
#pragma unroll 16
        for (int c = 0; c < count; ++c) y = y + products[c][lane];
      }
      __syncthreads();
    }
    if (warp == 0) Store(args, output, add, y);
  }
}

}  // namespace stoch::cuda::decode
