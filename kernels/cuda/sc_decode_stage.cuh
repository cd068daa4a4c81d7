// A decode block's chunks in shared memory: the activations' codes and, for each, its row of the count table.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_factor.cuh"
#include "kernels/cuda/quantizer.cuh"
#include "kernels/cuda/sc_decode_args.cuh"

namespace stoch::cuda::decode {

struct Stage {
  uint8_t* rows;   // [staged][tokens][128 dims][128] table rows
  uint8_t* codes;  // [staged][tokens][128]
  float* scales;   // [staged][tokens]
  // [staged][tokens] bit t: tile t has a code of the largest level, whose count of 256 does not fit a byte.
  unsigned* top_tiles;
};

template <int kTokens>
__device__ Stage MakeStage(uint8_t* shared, int staged) {
  Stage stage;
  stage.rows = shared;
  stage.codes = stage.rows + staged * kTokens * kStageBytes;
  stage.scales = reinterpret_cast<float*>(stage.codes + staged * kTokens * kChunkDims);
  stage.top_tiles = reinterpret_cast<unsigned*>(stage.scales + staged * kTokens);
  return stage;
}
template <int kTokens>
int StageBytes(int staged) {
  return staged * kTokens * (kStageBytes + kChunkDims + 8);
}

// What: notes that element `index` of the codes has the largest level. top_tiles starts at 0.
__device__ __forceinline__ void NoteTop(const Stage& stage, int index) {
  atomicOr(stage.top_tiles + index / kChunkDims, 1u << (index % kChunkDims / kTileDims));
}

// What: asks for the norm weights of the first chunks that a block will quantize; they do not depend on other kernels.
__device__ __forceinline__ void PrefetchNorm(const DecodeArgs& args, int64_t first) {
  constexpr int kLineFloats = 32;
  if (args.source.prologue != Prologue::kRmsNorm) return;
  const int64_t i = first * args.dims.chunk_d + static_cast<int64_t>(threadIdx.x) * kLineFloats;
  if (threadIdx.x < kMaxFusedChunks * kChunkDims / kLineFloats && i < args.dims.dims) {
    PrefetchL2Line(args.source.norm_weight + i);
  }
}

// Quantizes `count` chunks of the one row from `first` on, a thread per element: latencies, not work, are what counts
// in front of every linear, so everything is loaded before the norm is known. Ends with the codes of all threads
// visible.
template <bool kTop256>
__device__ void QuantizeChunks(const DecodeArgs& args, int64_t first, int count, const Stage& stage, float* shared) {
  static_assert(kMaxFusedChunks * kChunkDims <= Cut<1>::kThreads);
  __shared__ uint32_t warp_max[kMaxFusedChunks * kChunkDims / kWarp];
  const int index = static_cast<int>(threadIdx.x);
  const int slot = index / kChunkDims;
  const int64_t begin = (first + slot) * args.dims.chunk_d;
  const bool used = slot < count && index % kChunkDims < args.dims.chunk_dims(first + slot);
  const RowSource& source = args.source;
  float x = 0.0f;
  float y = 0.0f;
  if (used) {
    const int64_t i = begin + index % kChunkDims;
    x = source.x[i];
    if (source.prologue != Prologue::kNone)
      y = (source.prologue == Prologue::kRmsNorm ? source.norm_weight : source.x2)[i];
  }
  float r = 0.0f;
  if (source.prologue == Prologue::kRmsNorm) r = NormFactor(source.x, args.dims.dims, source.norm_eps, shared);
  const float value = ApplyPrologue(source.prologue, x, y, r);
  if (slot < kMaxFusedChunks) {
    const uint32_t magnitude = __reduce_max_sync(kAllLanes, FloatToBits(value) & 0x7fffffffu);
    if (index % kWarp == 0) warp_max[index / kWarp] = magnitude;
    if constexpr (kTop256) {
      if (index < count) stage.top_tiles[index] = 0;
    }
  }
  __syncthreads();
  if (slot < count) {
    Extremes e;
    constexpr int kWarpsOfChunk = kChunkDims / kWarp;
#pragma unroll
    for (int w = 0; w < kWarpsOfChunk; ++w) e.max_abs_bits = max(e.max_abs_bits, warp_max[slot * kWarpsOfChunk + w]);
    const QuantizerParams params{ScCode::kSignMagnitude, args.q_max, 1};
    const ScopeQuantizer quantizer(params, e);
    const uint8_t code = quantizer.Code(params, value);
    stage.codes[index] = code;
    if constexpr (kTop256) {
      if ((code & 0x7f) == args.levels - 1) NoteTop(stage, index);
    }
    if (index % kChunkDims == 0) {
      stage.scales[slot] = quantizer.scale;
      if (!quantizer.finite) args.reporter.Report();
    }
  }
  __syncthreads();
}

// The same from codes that are in memory already.
template <int kTokens, bool kTop256>
__device__ void CopyChunks(const DecodeArgs& args, int64_t first, int count, const Stage& stage) {
  constexpr int kThreads = Cut<kTokens>::kThreads;
  if constexpr (kTop256) {
    for (int i = static_cast<int>(threadIdx.x); i < count * kTokens; i += kThreads) stage.top_tiles[i] = 0;
    __syncthreads();
  }
  for (int index = static_cast<int>(threadIdx.x); index < count * kTokens * kChunkDims; index += kThreads) {
    const int i = index / kChunkDims;
    const int d = index % kChunkDims;
    const int64_t chunk = first + i / kTokens;
    const int token = i % kTokens;
    const bool used = token < args.tokens && d < args.dims.chunk_dims(chunk);
    const uint8_t code =
        used ? args.a.codes[token * args.a.dims.padded + chunk * args.dims.chunk_stride + d] : uint8_t{0};
    stage.codes[index] = code;
    if constexpr (kTop256) {
      if ((code & 0x7f) == args.levels - 1) NoteTop(stage, index);
    }
    if (d == 0) stage.scales[i] = token < args.tokens ? args.a.scales[chunk * args.a.rows + token] : 0.0f;
  }
  __syncthreads();
}

// Table rows of the staged codes. Ends with them visible to all threads.
template <int kTokens>
__device__ void StageRows(const DecodeArgs& args, int count, const Stage& stage) {
  constexpr int kThreads = Cut<kTokens>::kThreads;
  const int rows = count * kTokens * kChunkDims;
  const auto entry = [&](int row) {
    return static_cast<int64_t>(row % kChunkDims & (args.masks - 1)) * args.levels + (stage.codes[row] & 0x7f);
  };
  if (args.levels == kRowBytes) {
    constexpr int kPieces = kRowBytes / 16;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kThreads) {
      const auto* from = reinterpret_cast<const uint4*>(args.counts + entry(i / kPieces) * kRowBytes);
      reinterpret_cast<uint4*>(stage.rows)[i] = __ldg(from + i % kPieces);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < rows * args.levels; i += kThreads) {
      const int row = i / args.levels;
      stage.rows[row * kRowBytes + i % args.levels] = args.counts[entry(row) * args.levels + i % args.levels];
    }
  }
  __syncthreads();
}

}  // namespace stoch::cuda::decode
