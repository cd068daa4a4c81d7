// SPDX-License-Identifier: Apache-2.0
// Arguments of the table kernels (kernel.cuh), and how a block stages a chunk's activations as codes in shared memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/sc/batch/outputs.cuh"
#include "kernels/cuda/sc/batch/quantize.cuh"
#include "kernels/cuda/sc/table/table.h"

namespace stoch::cuda::batch_table {

inline constexpr int kWarps = 16;
inline constexpr int kThreads = kWarps * kWarp;
inline constexpr int kChunkDims = 128;         // dimensions of a chunk, at most
inline constexpr int kWords = kChunkDims / 4;  // words of a token's codes of a chunk
inline constexpr int kGroups = 2;
inline constexpr int kUnitRows = kGroups * kGroupRows;  // weight rows that a warp multiplies at a time

struct TableArgs {
  BatchOutputs outputs;
  // If outputs.a.codes is null, every block quantizes, from `source`, the chunks that it multiplies. Several blocks may
  // write the scales of a chunk; the values are equal.
  RowSource source;
  int q_max = 0;
  float* scales = nullptr;  // [chunks][tokens] memory of outputs.a.scales, which blocks that quantize write
  const CountQuarter* quarters = nullptr;  // few.cu: [masks][levels][kCountQuarters] rows of counts
  int levels = 128;
  const uint32_t* factors = nullptr;    // table.cu: ScTables::factors of the residual form
  const uint32_t* residuals = nullptr;  // table.cu: ScTables::residuals of the residual form
  int masks = 1;
  BlockShare units;  // a block's range of units (weights.cuh)
  GridBarrier barrier;
};

// Arguments if tokens have stream lengths of their own.
struct MixedTableArgs : TableArgs {
  LookupLengths lengths;
  float* gains = nullptr;  // [chunks][tokens] real value of one count, written by the blocks
};
// Shared memory for the slot (index of a stream length) of every token in the staged chunk; empty without kMixed.
template <int kTokens, bool kMixed>
struct TokenSlots {};
template <int kTokens>
struct TokenSlots<kTokens, true> {
  uint8_t slots[kTokens];
};
template <bool kMixed>
using ArgsOf = std::conditional_t<kMixed, MixedTableArgs, TableArgs>;

// The staged codes of a chunk in shared memory: [tokens][kWords] words of four codes.
using StagedCodes = uint32_t (*)[kWords];

// Copies the codes of a chunk to shared memory, by all threads of the block. Padding tokens and dimensions get code 0,
// whose counts are 0.
template <int kTokens>
__device__ void StageCodes(const TableArgs& args, int64_t chunk, StagedCodes codes_of) {
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kWords; i += kThreads) {
    const int token = i / kWords;
    const int d = i % kWords * 4;
    uint32_t codes = 0;
    if (token < args.outputs.a.tokens && d < args.outputs.dims.chunk_padded(chunk)) {
      codes = *reinterpret_cast<const uint32_t*>(args.outputs.a.codes + token * args.outputs.a.dims.padded +
                                                 chunk * args.outputs.dims.chunk_stride + d);
    }
    codes_of[token][i % kWords] = codes;
  }
}

// As StageCodes for tokens with stream lengths of their own: also copies each token's slot in the chunk to `slots`, and
// writes the gains to args.gains (all blocks that multiply a chunk write equal gains). Tokens of length 0 get codes 0.
// Every thread loads codes and slot together, so that their latencies overlap.
template <int kTokens>
__device__ void StageCodesAndSlots(const MixedTableArgs& args, int64_t chunk, StagedCodes codes_of, uint8_t* slots) {
  const RowSlots& of_rows = args.lengths.slots;
  const int tokens = static_cast<int>(args.outputs.a.tokens);
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kWords; i += kThreads) {
    const int token = i / kWords;
    const int d = i % kWords * 4;
    uint32_t codes = 0;
    int slot = 0;
    if (token < tokens && d < args.outputs.dims.chunk_padded(chunk)) {
      codes = *reinterpret_cast<const uint32_t*>(args.outputs.a.codes + token * args.outputs.a.dims.padded +
                                                 chunk * args.outputs.dims.chunk_stride + d);
    }
    if (token < tokens && of_rows.slots != nullptr) {
      slot = of_rows.slots[token * of_rows.per_row + (of_rows.per_row > 1 ? chunk : 0)];
    }
    codes_of[token][i % kWords] = args.lengths.tables[slot].pruned ? 0 : codes;
    if (d != 0) continue;
    slots[token] = static_cast<uint8_t>(slot);
    if (token < tokens) args.gains[chunk * tokens + token] = args.lengths.tables[slot].gain;
  }
}

// Quantizes chunks of f(x) inside the kernel: quantizing again in every block is faster than a kernel of its own in
// front (8B, 4 tokens: 5 % of a step). All warps of the block take part, because a chain of divisions takes most of the
// time; all run one copy of the code, because fetching instructions costs, too (8 tokens, a warp each: 3 % of a step).
template <int kTokens>
struct RowQuantizer {
  static constexpr int kShares = kWarps / kTokens;  // warps that quantize one token's chunk together
  static_assert(kShares * kTokens == kWarps);
  using Chunk = ChunkOfRow<kShares>;
  const TableArgs& args;
  int token;          // token of this warp
  int share;          // index of this warp among the kShares warps of its token
  Chunk mine;         // this lane's elements of the current chunk
  float norm = 0.0f;  // RMSNorm factor of the token's row

  __device__ __forceinline__ RowQuantizer(const TableArgs& table_args, int chunk, int warp)
      : args(table_args), token(warp / kShares), share(warp % kShares), mine(At(chunk)) {
    mine.LoadNormWeights();
  }
  __device__ __forceinline__ Chunk At(int chunk) const {
    const auto none = static_cast<int>(args.outputs.dims.chunks);
    return {args.source, args.outputs.dims,
            token,       token < args.outputs.a.tokens ? chunk : none,
            share,       static_cast<int>(threadIdx.x) % kWarp};
  }
  // Loads the first chunk's elements and computes the RMSNorm factors, by all threads of the block. `table`: the
  // table's shared memory, used as scratch until the next barrier.
  __device__ __forceinline__ void Load(uint8_t* table) {
    mine.Load();
    if (args.source.prologue != Prologue::kRmsNorm) return;
    auto* lanes = reinterpret_cast<float*>(table);
    const auto cols = static_cast<int>(args.outputs.dims.dims);
    // Row numbers past the last token read the last row. More than four rows a thread at a time would spill registers.
    constexpr int kTeams = kThreads / kRowLanes;
    constexpr int kAtOnce = std::min(kTokens / kTeams, 4);
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) / kRowLanes; first < args.outputs.a.tokens;
         first += kTeams * kAtOnce) {
      const float* x[kAtOnce];
      float* to[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int n = first + i * kTeams;
        x[i] = args.source.x + min(n, static_cast<int>(args.outputs.a.tokens) - 1) * args.source.x_stride;
        to[i] = lanes + n * kRowLanes;
      }
      NormLane<kAtOnce>(x, cols, static_cast<int>(threadIdx.x) % kRowLanes, to);
    }
    __syncthreads();
    if (token < args.outputs.a.tokens) norm = FoldNorm(lanes + token * kRowLanes, cols, args.source.norm_eps);
  }
  // Loads the elements of another chunk.
  __device__ __forceinline__ void Next(int chunk) {
    mine = At(chunk);
    mine.LoadNormWeights();
    mine.Load();
  }
  // Quantizes the loaded chunk to `codes_of` in shared memory, and writes its scales. By all threads of the block.
  __device__ __forceinline__ void StageChunk(int64_t chunk, StagedCodes codes_of) {
    __shared__ uint32_t largest[kTokens][kShares];
    uint32_t most = mine.MaxAbsBits(norm);
    if constexpr (kShares > 1) {
      largest[token][share] = most;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kShares; ++i) most = max(most, largest[token][i]);
    }
    // The first argument is a constant, so that the quantizers of other codes are not compiled in.
    const ScopeParams params{ScCode::kSignMagnitude, args.q_max};
    const ScopeQuantizer quantizer(params, Extremes{most});
    auto* codes = reinterpret_cast<uint8_t*>(codes_of[token]);
    mine.Codes(params, quantizer, [&](int d, uint8_t code) { codes[d] = code; });
    if (share != 0 || threadIdx.x % kWarp != 0 || token >= args.outputs.a.tokens) return;
    args.scales[chunk * args.outputs.a.tokens + token] = quantizer.scale;
    if (!quantizer.finite) args.outputs.reporter.Report();
  }
};

// Transposes a 4 x 4 matrix of bytes: out[j] has byte j of a, b, c and d, a's lowest.
__device__ __forceinline__ void Transpose(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t (&out)[4]) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(ab_low, cd_low, 0x5410);
  out[1] = __byte_perm(ab_low, cd_low, 0x7632);
  out[2] = __byte_perm(ab_high, cd_high, 0x5410);
  out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

}  // namespace stoch::cuda::batch_table
