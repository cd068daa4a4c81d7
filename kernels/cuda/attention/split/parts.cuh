// SPDX-License-Identifier: Apache-2.0
// Device functions of the split kernels that run on binary tensor cores (mma.cuh): staging queries as streams, scores
// of 16 dimensions, quantizing weights, and p v of 16 positions. A weight is what p v quantizes: a probability times
// the scale of its value.
#pragma once

#include "kernels/cuda/attention/split/mma.cuh"
#include "kernels/cuda/attention/split/work.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

inline constexpr int kScoreHeads = 4;  // query heads in the 8 columns of a tile of q k, two columns each
inline constexpr int kValueHeads = 8;  // query heads in the 8 columns of a tile of p v, one column each

// Calls launch<kHeadDim, kN>() with the head's dimensions (64 or 128) and the number of 8-column tiles that a block's
// query heads need in q k.
template <typename Launch>
void DispatchHeads(const SplitArgs& args, const Launch& launch) {
  const bool one_tile = args.block_heads <= kScoreHeads;
  if (args.attention.kv.head_dim == 64) {
    one_tile ? launch.template operator()<64, 1>() : launch.template operator()<64, 2>();
  } else {
    one_tile ? launch.template operator()<128, 1>() : launch.template operator()<128, 2>();
  }
}

// The queries of a block's heads in shared memory, as operands B of BinaryMma. Column 2 h of a tile has the streams of
// query head h in the dimensions where the head's code is positive, column 2 h + 1 the streams where the code is
// negative, and 0 elsewhere. A score is the difference of the two columns, which are accumulators of one lane.
template <int kHeadDim, int kN>
struct QueryStreams {
  static constexpr int kGroups = kHeadDim / kGroupDims;
  uint4 streams[kN][kGroups][4][32];  // [tile][16 dimensions][byte of a word of codes][lane]
  // [tile][16 dimensions][lane]: minus the number of ones of four streams, a byte each
  uint32_t bytes[kN][kGroups][32];
};

// Fills s with the streams of the queries in `codes`, [heads.count][kHeadDim] in global or shared memory; other heads
// get 0. Called by all kThreads threads; the caller puts a barrier after it.
template <int kThreads, int kHeadDim, int kN>
__device__ __forceinline__ void StageCodes(const SplitArgs& args, const uint8_t* codes, const SplitHeads& heads,
                                           QueryStreams<kHeadDim, kN>& s) {
  constexpr int kJobs = kN * QueryStreams<kHeadDim, kN>::kGroups * 4 * 32;
#pragma unroll 8
  for (int job = static_cast<int>(threadIdx.x); job < kJobs; job += kThreads) {
    const int lane = job & 31;
    const int j = job >> 5 & 3;
    const int group = (job >> 7) % QueryStreams<kHeadDim, kN>::kGroups;
    const int n = (job >> 7) / QueryStreams<kHeadDim, kN>::kGroups;
    const int head = n * kScoreHeads + (lane >> 3);
    const int dim = group * kGroupDims + (lane & 3) * 4 + j;
    const int code = head < heads.count ? codes[head * kHeadDim + dim] : 0;
    uint4 stream = make_uint4(0, 0, 0, 0);
    if (code != 0 && (code >> 7) == (lane >> 2 & 1)) stream = LoadStream(args.qk, dim, code & 0x7f);
    s.streams[n][group][j][lane] = Reordered(stream);
    reinterpret_cast<uint8_t*>(&s.bytes[n][group][lane])[j] = static_cast<uint8_t>(-Ones(stream));
  }
}

// Addresses of a lane's four keys (neighbouring positions) out of 32: of `words`, which have the codes of four
// dimensions each, and of the keys' `scales`. KeysAt computes them for the 32 positions from `token` on.
struct KeyPlaces {
  const uint32_t* words;
  const float* scales;
};

template <typename Kv>
__device__ __forceinline__ KeyPlaces KeysAt(const Kv& kv, const int32_t* pages, int kv_head, int token, int length) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const KvPlace at = PlaceOf(kv, pages, min(token + lane / 4 * 4, length - 1) & ~3);
  return {kv.k_words + kv.KWord(at.page, kv_head, lane & 3, at.slot),
          kv.k_scales + kv.Scale(at.page, kv_head, at.slot)};
}

// Loads a lane's words of four keys, in dimensions 16 * group + 4 * (lane % 4) and the next three.
__device__ __forceinline__ uint4 LoadKeys(const KvView& kv, const KeyPlaces& at, int group) {
  return __ldcg(reinterpret_cast<const uint4*>(at.words + kv.KeyWord(group * 4)));
}

// Adds the products q k of 32 * kQuads positions in one group of 16 dimensions to `acc`, for bytes j to 3 of every word
// of codes (the caller passes j = 0), and corrects for negative codes of keys (mma.cuh). Called by all lanes of a warp.
template <int kHeadDim, int kN, int kQuads, int j = 0>
__device__ __forceinline__ void AddGroup(const uint4 (&k)[kQuads], uint32_t table, const QueryStreams<kHeadDim, kN>& s,
                                         int group, int lane, int32_t (&acc)[kQuads][2][kN][4]) {
  uint4 stream[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) stream[n] = s.streams[n][group][j][lane];
#pragma unroll
  for (int u = 0; u < kQuads; ++u) {
    const uint32_t words[4] = {k[u].x, k[u].y, k[u].z, k[u].w};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint4 low = LookUpThermometer<j>(table, words[2 * m]);
      const uint4 high = LookUpThermometer<j>(table, words[2 * m + 1]);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        BinaryMma(acc[u][m][n], low.x, high.x, low.y, high.y, stream[n].x, stream[n].y);
        BinaryMma(acc[u][m][n], low.z, high.z, low.w, high.w, stream[n].z, stream[n].w);
      }
    }
  }
  if constexpr (j + 1 < 4) {
    AddGroup<kHeadDim, kN, kQuads, j + 1>(k, table, s, group, lane, acc);
  } else {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint32_t bytes = s.bytes[n][group][lane];
#pragma unroll
      for (int u = 0; u < kQuads; ++u) {
        ByteMma(acc[u][0][n], NegativeBytes(k[u].x), NegativeBytes(k[u].y), bytes);
        ByteMma(acc[u][1][n], NegativeBytes(k[u].z), NegativeBytes(k[u].w), bytes);
      }
    }
  }
}

// Returns the levels of four weights of a head from position t on, a byte each; 0 for positions that the row does not
// see. A scale of 0 means that this lane (column lane / 4) has no head.
__device__ __forceinline__ uint32_t QuantizeWeights(const SplitArgs& args, const SplitRow& row, int t,
                                                    const float4& weight, float scale) {
  const float values[4] = {weight.x, weight.y, weight.z, weight.w};
  uint32_t levels = 0;
  if (scale == 0.0f) return 0;  // this lane's column has no head
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool seen = t + i >= row.first && t + i < row.length;
    const int level = seen ? BipolarLevel(values[i], scale, args.av.q_max) : 0;
    levels |= static_cast<uint32_t>(level) << (8 * i);
  }
  return levels;
}

// Streams of four weights, their words in the order of the thermometer table (Reordered), and `bytes`, minus the number
// of ones of each stream.
struct Weights {
  uint4 streams[4];
  uint32_t bytes;
};

template <typename Args>
__device__ __forceinline__ Weights LoadWeights(const Args& args, int t, uint32_t levels) {
  Weights w;
  w.bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int level = static_cast<int>(levels >> (8 * i) & 0xff);
    w.streams[i] = level != 0 ? LoadStream(args.av, AbsoluteOf(args, t + i), level) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w.bytes |= static_cast<uint32_t>(-Ones(w.streams[i]) & 0xff) << (8 * i);
    w.streams[i] = Reordered(w.streams[i]);
  }
  return w;
}

// Loads a lane's share of the values of 16 positions: the codes of positions t to t + 3, for four neighbouring
// dimensions out of every 32. The lanes of a quad pass different t, multiples of 4.
template <int kHeadDim, typename Kv>
__device__ __forceinline__ void LoadValues(const Kv& kv, const int32_t* pages, int kv_head, int t, int length,
                                           uint4 (&v)[kHeadDim / 32]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const KvPlace at = PlaceOf(kv, pages, min(t, length - 1) & ~3);
  const uint32_t* from = kv.v_words + kv.VWord(at.page, kv_head, at.slot >> 2, (lane >> 2) * 4);
#pragma unroll
  for (int m = 0; m < kHeadDim / 32; ++m) v[m] = __ldcg(reinterpret_cast<const uint4*>(from + kv.ValueDim(32 * m)));
}

// Adds the products p v of one position (number j of a lane's four) and the four dimensions in v to two tiles of
// accumulators. j = 0 also corrects for negative codes of all four positions. kIsShifted: every other thermometer is
// made by shifts instead of looked up.
template <bool kIsShifted, int j>
__device__ __forceinline__ void AddPosition(const uint4& v, const uint4& stream, uint32_t bytes, uint32_t table,
                                            int32_t (*acc)[4]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 low = LookUpThermometer<j>(table, words[2 * h]);
    const uint4 high = OtherThermometer<kIsShifted, j>(table, words[2 * h + 1]);
    BinaryMma(acc[h], low.x, high.x, low.y, high.y, stream.x, stream.y);
    BinaryMma(acc[h], low.z, high.z, low.w, high.w, stream.z, stream.w);
    if constexpr (j == 0) ByteMma(acc[h], NegativeBytes(words[2 * h]), NegativeBytes(words[2 * h + 1]), bytes);
  }
}

// Adds the products p v of positions j to 3 of a lane's four (the caller passes j = 0), for all of the lane's words of
// values.
template <int kHeadDim, int j = 0>
__device__ __forceinline__ void AddPositions(const uint4 (&v)[kHeadDim / 32], const Weights& w, uint32_t table,
                                             int32_t (&acc)[kHeadDim / 16][4]) {
#pragma unroll
  for (int m = 0; m < kHeadDim / 32; ++m) AddPosition<false, j>(v[m], w.streams[j], w.bytes, table, acc + 2 * m);
  if constexpr (j + 1 < 4) AddPositions<kHeadDim, j + 1>(v, w, table, acc);
}

// Adds a warp's accumulators of p v to the block's sums in shared memory, [head][dimension], by atomics. In tile 2 m +
// h, row i is dimension 32 m + 4 i + 2 h, row i + 8 is the dimension after it, and the columns are query heads.
template <int kHeadDim>
__device__ __forceinline__ void AddToBlock(const int32_t (&acc)[kHeadDim / 16][4], int heads,
                                           int32_t (&sums)[kValueHeads][kHeadDim]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int m = 0; m < kHeadDim / 16; ++m) {
    const int dim = m / 2 * 32 + (lane >> 2) * 4 + m % 2 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = (lane & 3) * 2 + i % 2;
      if (head < heads) atomicAdd(&sums[head][dim + i / 2], acc[m][i]);
    }
  }
}

}  // namespace stoch::cuda
