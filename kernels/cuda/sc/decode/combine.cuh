// SPDX-License-Identifier: Apache-2.0
// The end of a decode kernel: products of chunks, which many blocks wrote, become outputs.
#pragma once

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/decode/args.cuh"
#include "kernels/math/elementary.h"

namespace stoch::cuda::decode {

// y of 32 rows and one token from a lane's products of all chunks, by one warp.
__device__ __forceinline__ float SumChunks(const float* from, int chunks) {
  constexpr int kInFlight = 32;
  float p[kInFlight];
  float y = 0.0f;
#pragma unroll 1
  for (; chunks >= kInFlight; chunks -= kInFlight, from += kInFlight * kWarp) {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) p[k] = __ldcg(from + k * kWarp);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) y = y + p[k];
  }
  if (chunks > 0) {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) p[k] = k < chunks ? __ldcg(from + k * kWarp) : 0.0f;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) y = y + p[k];  // + 0 changes nothing: y is never -0
  }
  return y;
}

// The same by a block, for many chunks: all its warps fetch and the first, which alone gets y, adds.
// Requires: `shared` holds kCombineChunks * 32 floats.
template <int kWarps>
__device__ __forceinline__ float SumChunksTogether(const float* from, int chunks, float* shared) {
  constexpr int kAtOnce = 16;
  constexpr int kThreads = kWarps * kWarp;
  constexpr int kLoads = (kCombineChunks * kWarp / 4 + kThreads - 1) / kThreads;
  static_assert(kCombineChunks % kAtOnce == 0);
  const int thread = static_cast<int>(threadIdx.x);
  float y = 0.0f;
#pragma unroll 1
  for (; chunks > 0; chunks -= kCombineChunks, from += kCombineChunks * kWarp) {
    const int count = min(kCombineChunks, chunks);
    const int padded = (count + kAtOnce - 1) / kAtOnce * kAtOnce;
    float4 p[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {  // all loads before the first store: a loop would wait for memory once a turn
      const int at = (thread + k * kThreads) * 4;
      p[k] = at < count * kWarp ? __ldcg(reinterpret_cast<const float4*>(from + at)) : float4{};
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int at = (thread + k * kThreads) * 4;
      if (at < padded * kWarp) *reinterpret_cast<float4*>(shared + at) = p[k];
    }
    __syncthreads();
    if (thread < kWarp) {
      const float* product = shared + thread;
      float ahead[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) ahead[k] = product[k * kWarp];
#pragma unroll 1
      for (int c = kAtOnce; c < padded; c += kAtOnce) {
        product += kAtOnce * kWarp;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {  // what is added next is read as its place gets free
          y = y + ahead[k];
          ahead[k] = product[k * kWarp];
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) y = y + ahead[k];  // zeros beyond `count` change nothing: y is never -0
    }
    __syncthreads();
  }
  return y;
}

// A lane's output of an item of 32 rows and a token.
struct Output {
  float* at = nullptr;  // null: padding
  float old = 0;
};
template <int kTokens>
__device__ __forceinline__ Output OutputOf(const DecodeArgs& args, int item, int lane) {
  const int token = kTokens == 1 ? 0 : args.by_row_blocks.Quotient(item);
  const int row_block = item - token * args.row_blocks;
  const Task& task = args.tasks[TaskOf(args, row_block)];
  const int row = (row_block - task.first_block) * kTileRows + lane;
  Output output;
  if (token >= args.tokens || row >= task.rows) return output;
  output.at = task.out + token * task.out_stride + row;
  if (args.add) output.old = *output.at;
  return output;
}

// Sums products in chunk order: items of 32 rows and a token, shared out over blocks and in each over its warps. With
// many chunks and few items, all warps of a block work on one item.
template <int kTokens>
__device__ __forceinline__ void Combine(const DecodeArgs& args, uint8_t* shared) {
  constexpr int kWarps = Cut<kTokens>::kWarps;
  constexpr int kManyChunks = 64;
  const auto sync = [] { __syncthreads(); };
  const unsigned arrived = args.barrier.Arrive(sync);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int items = kTokens == 1 ? args.row_blocks : args.row_blocks * args.tokens;
  const int blocks = static_cast<int>(gridDim.x);
  const int chunks = args.dims.chunks;
  const bool together = chunks > kManyChunks && items <= 4 * blocks;
  const int step = together ? blocks : kWarps * blocks;
  int item = static_cast<int>(blockIdx.x) + (together ? 0 : warp * blocks);

  bool waited = false;
#pragma unroll 1
  do {
    // Places, and what is added to, do not depend on other blocks: they are here before those are.
    const Output output = OutputOf<kTokens>(args, item, lane);
    const float* from = args.products + lane + static_cast<int64_t>(item * chunks) * kWarp;
    MakeHere(from);
    if (!waited) args.barrier.Await(arrived, sync);
    waited = true;
    if (item >= items) return;
    float y = 0.0f;
    if (together) {
      y = SumChunksTogether<kWarps>(from - lane, chunks, reinterpret_cast<float*>(shared));
    } else {
      y = SumChunks(from, chunks);
    }
    if (output.at != nullptr && (!together || warp == 0)) {
      y = args.add ? output.old + y : y;
      if (!IsFinite(y)) args.reporter.Report();
      *output.at = y;
    }
    item += step;
  } while (item < items);
}

}  // namespace stoch::cuda::decode
