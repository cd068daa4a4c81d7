// SPDX-License-Identifier: Apache-2.0
// The end of a decode kernel: products of chunks, which many blocks wrote, become outputs.
#pragma once

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/decode/args.cuh"
#include "kernels/math/elementary.h"

namespace stoch::cuda::decode {

// Posted, a product is a word that is not 0 (device/exchange.cuh), and whoever sums polls the products themselves: behind a
// barrier they would come two trips to the L2 later. +0 is posted as -0: sums, never -0, stay the same, and so do the
// codes of a row.
inline constexpr uint32_t kMinusZero = 0x80000000u;

template <int kTokens>
__device__ __forceinline__ void StoreProduct(const DecodeArgs& args, int64_t at, float product) {
  if (kTokens == 1 && args.words != nullptr) {
    PostValue(args.words + at, product);
  } else {
    args.products[at] = product;
  }
}

__device__ __forceinline__ void SetAll(uint32_t& word, uint32_t to) { word = to; }
__device__ __forceinline__ void SetAll(uint4& words, uint32_t to) { words = {to, to, to, to}; }

// Loads the first `count` of kCount places, `stride` words apart, others are -0. kPosted: as they come.
template <bool kPosted, int kCount, typename Words>
__device__ __forceinline__ void LoadProducts(const uint32_t* from, int stride, int count, Words (&words)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    SetAll(words[k], kPosted && k < count ? 0 : kMinusZero);
    if (!kPosted && k < count) words[k] = __ldcg(reinterpret_cast<const Words*>(from + k * stride));
  }
  if constexpr (kPosted) ReceiveAll(from, stride, words);
}
// 0 again, for the next kernel.
template <int kCount, typename Words>
__device__ __forceinline__ void ClearProducts(uint32_t* from, int stride, int count) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (k < count) *reinterpret_cast<Words*>(from + k * stride) = Words{};
  }
}

// Sets to 0 what the kernel is to clear for those behind it, by all threads of the grid. After WaitForPrevious.
// y of 32 rows and one token from a lane's products of all chunks, by one warp, kInFlight at a time.
template <bool kPosted, int kInFlight = 32>
__device__ __forceinline__ float SumChunks(uint32_t* from, int chunks) {
  float y = 0.0f;
#pragma unroll 1
  for (; chunks > 0; chunks -= kInFlight, from += kInFlight * kWarp) {
    uint32_t words[kInFlight];
    LoadProducts<kPosted>(from, kWarp, chunks, words);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) y = y + BitsToFloat(words[k]);  // + -0 changes nothing
    if constexpr (kPosted) ClearProducts<kInFlight, uint32_t>(from, kWarp, chunks);
  }
  return y;
}

// By a block, for many chunks: all its warps fetch and the first, which alone gets y, adds.
// Requires: `shared` holds kCombineChunks * 32 floats.
template <bool kPosted, int kWarps>
__device__ __forceinline__ float SumChunksTogether(uint32_t* from, int chunks, float* shared) {
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
    uint32_t* const mine = from + thread * 4;
    const int loads = (count * kWarp / 4 - thread + kThreads - 1) / kThreads;
    uint4 p[kLoads];
    LoadProducts<kPosted>(mine, kThreads * 4, loads, p);  // all loads before the first store, which would wait
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int at = (thread + k * kThreads) * 4;
      if (at < padded * kWarp) *reinterpret_cast<uint4*>(shared + at) = p[k];
    }
    __syncthreads();
    if constexpr (kPosted) ClearProducts<kLoads, uint4>(mine, kThreads * 4, loads);
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
      for (int k = 0; k < kAtOnce; ++k) y = y + ahead[k];  // -0 beyond `count` changes nothing
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
// many chunks and few items, all warps of a block work on one item. await(): called by all threads of the block before
// the first product is looked at.
template <int kTokens, bool kPosted, bool kPosts, bool kShares, typename Await>
__device__ __forceinline__ void CombineItems(const DecodeArgs& args, uint8_t* shared, const Await& await) {
  constexpr int kWarps = Cut<kTokens>::kWarps;
  constexpr int kManyChunks = 64;
  uint32_t* const products = kPosted ? args.words : reinterpret_cast<uint32_t*>(args.products);
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
    uint32_t* from = products + lane + static_cast<int64_t>(item * chunks) * kWarp;
    MakeHere(from);
    if (!waited) await(together);
    waited = true;
    if (item >= items) return;
    float y = 0.0f;
    if (together) {
      y = SumChunksTogether<kPosted, kWarps>(from - lane, chunks, reinterpret_cast<float*>(shared));
    } else {
      y = SumChunks<kPosted>(from, chunks);
    }
    if (output.at != nullptr && (!together || warp == 0)) {
      y = args.add ? output.old + y : y;
      if (!IsFinite(y)) args.reporter.Report();
      *output.at = y;
      if constexpr (kShares) {
        PostOutput(args.post, args.peers, item * kWarp + lane, y);
      } else if constexpr (kPosts) {
        PostValue(args.post.words + item * kWarp + lane, y);
      }
    }
    item += step;
  } while (item < items);
}

// Requires: outputs do not overlap the row that is multiplied (LinearCall): with posted products, other blocks may still
//           read it.
template <int kTokens, bool kPosts, bool kShares>
__device__ __forceinline__ void Combine(const DecodeArgs& args, uint8_t* shared) {
  const auto sync = [] { __syncthreads(); };
  if (kTokens == 1 && args.words != nullptr) {
    CombineItems<kTokens, kTokens == 1, kPosts, kShares>(args, shared, [&](bool together) {
      if (together) __syncthreads();  // all warps are done with `shared`
    });
    return;
  }
  const unsigned arrived = args.barrier.Arrive(sync);
  CombineItems<kTokens, false, kPosts, kShares>(args, shared, [&](bool) { args.barrier.Await(arrived, sync); });
}

}  // namespace stoch::cuda::decode
