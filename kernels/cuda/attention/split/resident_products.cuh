// SPDX-License-Identifier: Apache-2.0
// q k and p v of a block of the resident kernel, on binary tensor cores.
//
// q k: warps share the dimensions, so that a warp keeps the queries' streams of its own in registers and reads nothing
// from shared memory but thermometers; the counts of all dimensions are added up in the place of the scores.
#pragma once

#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/attention/split/resident.cuh"

namespace stoch::cuda {

// The streams of the queries of a warp's dimensions.
template <int kGroups, int kN>
struct QueryRegisters {
  uint4 streams[kN][kGroups][4];
  uint32_t bytes[kN][kGroups];  // minus their ones

  template <int kHeadDim>
  __device__ __forceinline__ void Load(const SplitArgs& args, const Stripes& b, int first_group) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int64_t vector = static_cast<int64_t>(b.row.row) * args.attention.num_heads + b.heads.first;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int head = n * kScoreHeads + (lane >> 3);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int word = (first_group + g) * 4 + (lane & 3);
        const uint32_t codes =
            head < b.heads.count ? __ldcg(args.q.words + (vector + head) * (kHeadDim / 4) + word) : 0;
        bytes[n][g] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t code = codes >> (8 * j) & 0xff;
          uint4& stream = streams[n][g][j];
          stream = make_uint4(0, 0, 0, 0);
          if (code != 0 && (code >> 7) == (lane >> 2 & 1u))
            stream = LoadStream(args.qk, word * 4 + j, static_cast<int>(code & 0x7f));
          bytes[n][g] |= static_cast<uint32_t>(-Ones(stream) & 0xff) << (8 * j);
        }
      }
    }
  }
};

// Which of a lane's thermometers are made by shifts where that is possible: two of sixteen codes.
template <bool kDirect>
constexpr bool IsShifted(int pair) {
  return kDirect && pair % 4 == 0;
}

// Adds a group of dimensions of 32 keys.
template <bool kDirect, int kN, int j = 0>
__device__ __forceinline__ void AddKeys(const uint4& k, uint32_t table, const uint4 (&streams)[kN][4],
                                        const uint32_t (&bytes)[kN], int32_t (&acc)[2][kN][4]) {
  const uint32_t words[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint4 low = LookUpThermometer<j>(table, words[2 * m]);
    const uint4 high = m == 0 ? OtherThermometer<IsShifted<kDirect>(j), j>(table, words[1])
                              : OtherThermometer<IsShifted<kDirect>(4 + j), j>(table, words[3]);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      BinaryMma(acc[m][n], low.x, high.x, low.y, high.y, streams[n][j].x, streams[n][j].y);
      BinaryMma(acc[m][n], low.z, high.z, low.w, high.w, streams[n][j].z, streams[n][j].w);
    }
  }
  if constexpr (j + 1 < 4) {
    AddKeys<kDirect, kN, j + 1>(k, table, streams, bytes, acc);
  } else {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      ByteMma(acc[0][n], NegativeBytes(k.x), NegativeBytes(k.y), bytes[n]);
      ByteMma(acc[1][n], NegativeBytes(k.z), NegativeBytes(k.w), bytes[n]);
    }
  }
}

// Adds the counts of four positions from i on to those of the other dimensions: a head's pairs of neighbours are 16 bits
// each of a word (of at most 128 dimensions and cycles), in the even or the odd place of their two by its parity, so that
// a warp's words are in different banks.
template <int kN>
__device__ __forceinline__ void AddCounts(const int32_t (&acc)[2][kN][4], int heads, int stride, int i,
                                          int32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int head = n * kScoreHeads + (lane & 3);
    if (head >= heads) continue;
    const auto pair = [&](int m) {
      const int32_t(&d)[4] = acc[m][n];
      return (d[0] - d[1]) + (d[2] - d[3]) * 65536;
    };
    const int32_t first = pair(0);
    const int32_t second = pair(1);
    const bool swap = (lane & 2) != 0;
    int32_t* to = counts + head * stride + i + (lane & 1);
    atomicAdd(to + (swap ? 2 : 0), swap ? second : first);
    atomicAdd(to + (swap ? 0 : 2), swap ? first : second);
  }
}

// Keys of a warp's dimensions, of its next two tiles of 32 positions.
template <int kHeadDim, int kGroups>
struct KeyTiles {
  static constexpr int kSlices = kHeadDim / (kGroups * kGroupDims);  // of the dimensions
  static constexpr int kSlots = kResidentWarps / kSlices;            // warps with the same dimensions
  static constexpr int kTile = 32;
  uint4 k[2][kGroups];

  __device__ static int Group() { return static_cast<int>(threadIdx.x >> 5) % kSlices * kGroups; }
  __device__ static int Slot() { return static_cast<int>(threadIdx.x >> 5) / kSlices; }
  __device__ static int Own() { return static_cast<int>(threadIdx.x & 31) / 4 * 4; }  // of a tile, this lane's first

  // Asks for the tile at local position `i`.
  __device__ __forceinline__ void Load(const KvView& kv, const Stripes& b, int i, uint4 (&to)[kGroups]) {
    const KeyPlaces at = KeysOf(kv, b.pages, b.heads.kv_head, min(b.Token(i + Own()), b.row.length - 1));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) to[g] = LoadKeys(kv, at, Group() + g);
  }
  // Of positions from `begin` on, which end at `end`.
  __device__ __forceinline__ void Begin(const KvView& kv, const Stripes& b, int begin, int end) {
    const int i = begin + Slot() * kTile;
    if (i < end) Load(kv, b, i, k[0]);
    if (i + kSlots * kTile < end) Load(kv, b, i + kSlots * kTile, k[1]);
  }
};

// Counts of local positions [begin, end), in `counts` from 0 on, which is all 0 before.
// Requires: keys.Begin(begin, end).
template <bool kDirect, int kHeadDim, int kN, int kGroups>
__device__ __forceinline__ void CountKeys(const SplitArgs& args, const Stripes& b, int begin, int end, uint32_t table,
                                          const QueryRegisters<kGroups, kN>& q, KeyTiles<kHeadDim, kGroups>& keys,
                                          int32_t* counts) {
  using Tiles = KeyTiles<kHeadDim, kGroups>;
  constexpr int kStep = Tiles::kSlots * Tiles::kTile;
  const auto step = [&](int tile, uint4(&k)[kGroups]) {
    int32_t acc[2][kN][4] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint4 streams[kN][4];
      uint32_t bytes[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        bytes[n] = q.bytes[n][g];
#pragma unroll
        for (int j = 0; j < 4; ++j) streams[n][j] = q.streams[n][g][j];
      }
      AddKeys<kDirect, kN>(k[g], table, streams, bytes, acc);
    }
    if (tile + 2 * kStep < end) keys.Load(args.attention.kv, b, tile + 2 * kStep, k);
    const int i = tile + Tiles::Own();
    if (i < end) AddCounts<kN>(acc, b.heads.count, args.resident_positions + kSplitResidentPad, i - begin, counts);
  };
  int tile = begin + Tiles::Slot() * Tiles::kTile;
#pragma unroll 1
  while (tile < end) {
    step(tile, keys.k[0]);
    tile += kStep;
    if (tile >= end) break;
    step(tile, keys.k[1]);
    tile += kStep;
  }
}

// Streams of weights that a block keeps in shared memory: of the masks of its positions. After them minus their ones.
struct WeightStreams {
  const uint4* streams;  // null: read from memory
  const uint8_t* bytes;
  int masks;
};

__device__ __forceinline__ Weights StreamsOf(const SplitArgs& args, const WeightStreams& table, int t,
                                             uint32_t levels) {
  if (table.streams == nullptr) return LoadWeights(args, t, levels);
  Weights w;
  w.bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int level = static_cast<int>(levels >> (8 * i) & 0xff);
    const int at = ((t + i) & (table.masks - 1)) * args.av.levels + level;
    w.streams[i] = make_uint4(0, 0, 0, 0);
    if (level != 0) {
      w.streams[i] = table.streams[at];
      w.bytes |= static_cast<uint32_t>(table.bytes[at]) << (8 * i);
    }
  }
  return w;
}

// Adds positions j and later of four; kWords times 32 dimensions.
template <bool kDirect, int kWords, int j = 0>
__device__ __forceinline__ void AddHalf(const uint4 (&v)[kWords], const Weights& w, uint32_t table,
                                        int32_t (&acc)[2 * kWords][4]) {
#pragma unroll
  for (int m = 0; m < kWords; ++m) {
    const uint32_t words[4] = {v[m].x, v[m].y, v[m].z, v[m].w};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 low = LookUpThermometer<j>(table, words[2 * h]);
      const uint4 high = h == 0 ? OtherThermometer<IsShifted<kDirect>(j), j>(table, words[1])
                                : OtherThermometer<IsShifted<kDirect>(4 + j), j>(table, words[3]);
      BinaryMma(acc[2 * m + h], low.x, high.x, low.y, high.y, w.streams[j].x, w.streams[j].y);
      BinaryMma(acc[2 * m + h], low.z, high.z, low.w, high.w, w.streams[j].z, w.streams[j].w);
      if constexpr (j == 0)
        ByteMma(acc[2 * m + h], NegativeBytes(words[2 * h]), NegativeBytes(words[2 * h + 1]), w.bytes);
    }
  }
  if constexpr (j + 1 < 4) AddHalf<kDirect, kWords, j + 1>(v, w, table, acc);
}

// Values of a warp's half of the dimensions, of its next two groups of 16 positions.
template <int kHeadDim>
struct ValueGroups {
  static constexpr int kWords = kHeadDim / 64;
  static constexpr int kSlots = kResidentWarps / 2;  // warps with the same half
  uint4 v[2][kWords];

  __device__ static int Slot() { return static_cast<int>(threadIdx.x >> 6); }
  // The first of this lane's dimensions, and its positions of a group.
  __device__ static int Dim() {
    return static_cast<int>(threadIdx.x >> 5 & 1) * (kHeadDim / 2) + static_cast<int>(threadIdx.x & 31) / 4 * 4;
  }
  __device__ static int Own() { return static_cast<int>(threadIdx.x & 3) * 4; }

  __device__ __forceinline__ void Load(const KvView& kv, const Stripes& b, int group, uint4 (&to)[kWords]) {
    const int t = min(b.Token(group * kGroupDims + Own()), b.row.length - 1) & ~3;
    const int32_t page = __ldg(b.pages + (t >> kv.page_shift));
    const uint32_t* from = kv.v_words + kv.VWord(page, b.heads.kv_head, (t & (kv.page_tokens - 1)) >> 2, Dim());
#pragma unroll
    for (int m = 0; m < kWords; ++m) to[m] = __ldcg(reinterpret_cast<const uint4*>(from + 32 * m));
  }
  __device__ __forceinline__ void Begin(const KvView& kv, const Stripes& b) {
    const int groups = b.count() / kGroupDims;
    if (Slot() < groups) Load(kv, b, Slot(), v[0]);
    if (Slot() + kSlots < groups) Load(kv, b, Slot() + kSlots, v[1]);
  }
};

// p v of the stripe into `sums`: a warp takes half of the dimensions, 16 positions at a time.
// Requires: values.Begin.
template <bool kDirect, int kHeadDim, int kMaxHeads>
__device__ __forceinline__ void Values(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                       const WeightStreams& streams, uint32_t table, ValueGroups<kHeadDim>& values,
                                       int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  using Groups = ValueGroups<kHeadDim>;
  constexpr int kWords = Groups::kWords;
  constexpr int kSlots = Groups::kSlots;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const bool is_head = lane >> 2 < b.heads.count;
  const float* column = scores.at + min(lane >> 2, b.heads.count - 1) * scores.stride + Groups::Own();
  const int groups = b.count() / kGroupDims;
  int32_t acc[2 * kWords][4] = {};
  uint32_t levels[2] = {};
  const auto levels_of = [&](int group) {
    return is_head && group < groups ? *reinterpret_cast<const uint32_t*>(column + group * kGroupDims) : 0;
  };
  const auto step = [&](int group, uint4(&v)[kWords], uint32_t& level) {
    if (__any_sync(0xffffffffu, level != 0)) {
      const Weights w = StreamsOf(args, streams, b.Token(group * kGroupDims + Groups::Own()), level);
      AddHalf<kDirect, kWords>(v, w, table, acc);
    }
    level = levels_of(group + 2 * kSlots);
    if (__any_sync(0xffffffffu, level != 0)) values.Load(args.attention.kv, b, group + 2 * kSlots, v);
  };
  int group = Groups::Slot();
  if (group >= groups) return;
  levels[0] = levels_of(group);
  levels[1] = levels_of(group + kSlots);
#pragma unroll 1
  while (group < groups) {
    step(group, values.v[0], levels[0]);
    group += kSlots;
    if (group >= groups) break;
    step(group, values.v[1], levels[1]);
    group += kSlots;
  }
#pragma unroll
  for (int m = 0; m < 2 * kWords; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = (lane & 3) * 2 + i % 2;
      if (head < b.heads.count) atomicAdd(&sums[head][Groups::Dim() + m / 2 * 32 + m % 2 * 2 + i / 2], acc[m][i]);
    }
  }
}

}  // namespace stoch::cuda
