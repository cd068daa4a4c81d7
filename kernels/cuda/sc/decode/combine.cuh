// SPDX-License-Identifier: Apache-2.0
// The epilogue of the decode kernel: reduces the split-K partials, one product for each chunk, to outputs.
#pragma once

#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/decode/args.cuh"
#include "kernels/math/elementary.h"

namespace stoch::cuda::decode {

// -0, which is posted instead of +0, because a posted word must not be 0 (device/exchange.cuh). That changes no bits:
// sums start at +0 and are never -0, and the quantizer gives both zeros the same code. Products are posted so that the
// reducing warp can poll them, which takes two L2 round trips less than a grid barrier.
inline constexpr uint32_t kMinusZero = 0x80000000u;

// Stores one product of a chunk, by one lane: posts it to args.words if that is not null, else writes it to
// args.products. at: index in [tokens][row_blocks][chunks][32].
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

// Loads the first `count` of kCount products (uint32_t, or uint4 for four adjacent rows), which lie `stride` words
// apart; the rest of `words` becomes -0. kPosted: waits until every loaded word is posted.
template <bool kPosted, int kCount, typename Words>
__device__ __forceinline__ void LoadProducts(const uint32_t* from, int stride, int count, Words (&words)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    SetAll(words[k], kPosted && k < count ? 0 : kMinusZero);
    if (!kPosted && k < count) words[k] = __ldcg(reinterpret_cast<const Words*>(from + k * stride));
  }
  if constexpr (kPosted) ReceiveAll(from, stride, words);
}
// Zeroes the first `count` of kCount posted products, for the next kernel that posts there.
template <int kCount, typename Words>
__device__ __forceinline__ void ClearProducts(uint32_t* from, int stride, int count) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (k < count) *reinterpret_cast<Words*>(from + k * stride) = Words{};
  }
}

// Returns in each lane the sum of one row's products over `chunks` chunks, in chunk order; by one warp. `from` is the
// lane's product of chunk 0; chunks are 32 words apart. Up to kInFlight loads are in flight. kPosted: polls the
// products, then zeroes them.
template <bool kPosted, int kInFlight = 32>
__device__ __forceinline__ float SumChunks(uint32_t* from, int chunks) {
  float y = 0.0f;
#pragma unroll 1
  for (; chunks > 0; chunks -= kInFlight, from += kInFlight * kWarp) {
    uint32_t words[kInFlight];
    LoadProducts<kPosted>(from, kWarp, chunks, words);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) y = y + BitsToFloat(words[k]);  // adding -0 past the last chunk changes nothing
    if constexpr (kPosted) ClearProducts<kInFlight, uint32_t>(from, kWarp, chunks);
  }
  return y;
}

// As SumChunks, by a whole block, for many chunks: all warps load products to shared memory, and warp 0 adds them in
// chunk order. Only warp 0 gets the sums. `from` is the product of row 0 of the 32 rows in chunk 0.
// Requires: all threads of the block; `shared` holds kCombineChunks * 32 floats.
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
    LoadProducts<kPosted>(mine, kThreads * 4, loads, p);  // all loads first: a store in between would wait for its load
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
        for (int k = 0; k < kAtOnce; ++k) {  // software pipeline: the read of a product is kAtOnce adds ahead
          y = y + ahead[k];
          ahead[k] = product[k * kWarp];
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) y = y + ahead[k];  // adding the -0 past `count` changes nothing
    }
    __syncthreads();
  }
  return y;
}

// One lane's output of an item; an item is one row block (32 weight rows) of one token.
struct Output {
  float* at = nullptr;  // address of the output; null: padding row or token
  float old = 0;        // value to add to, if args.add
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

// Sums the products of all items in chunk order and writes the outputs. Items are distributed over blocks, and in a
// block over its warps; with many chunks and few items, all warps of a block sum one item together.
// kPosted: products are posted words. kPosts: outputs are posted for the next kernel; kShares: to other GPUs, too.
// await(together) is called once by all threads of the block, before the first product is read.
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
    // Addresses and old outputs do not depend on other blocks, so they are loaded while products are awaited.
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

// Turns all products into outputs. Called by all threads of every block, after the block's last StoreProduct.
// Requires: outputs do not overlap the input row (LinearCall): if products are posted, there is no grid barrier, and
//           other blocks may still read the row.
template <int kTokens, bool kPosts, bool kShares>
__device__ __forceinline__ void Combine(const DecodeArgs& args, uint8_t* shared) {
  const auto sync = [] { __syncthreads(); };
  if (kTokens == 1 && args.words != nullptr) {
    CombineItems<kTokens, kTokens == 1, kPosts, kShares>(args, shared, [&](bool together) {
      if (together) __syncthreads();  // all warps of the block have read the staged rows that `shared` holds
    });
    return;
  }
  const unsigned arrived = args.barrier.Arrive(sync);
  CombineItems<kTokens, false, kPosts, kShares>(args, shared, [&](bool) { args.barrier.Await(arrived, sync); });
}

}  // namespace stoch::cuda::decode
