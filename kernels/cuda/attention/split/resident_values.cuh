// SPDX-License-Identifier: Apache-2.0
// p v of a block of the resident kernels, on binary tensor cores.
//
// Nothing in the loop waits for a load that was just issued: values are asked for in the L2 two groups ahead and in registers one,
// streams of weights while the group before is added up. Loads share few scoreboards, so that a load in a branch, or a page
// looked up on the way, would have everybody wait for the values behind it.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/split/resident_pages.cuh"

namespace stoch::cuda {

// Streams of weights that a block keeps in shared memory, [mask][level], of the masks of its positions.
struct WeightStreams {
  uint32_t at = 0;  // shared address
  int masks = 0;    // 0: they are read from memory
};

// The 16 or 8 bytes of shared memory at `at` where they are wanted; otherwise `to` stays as it is. Without a branch.
__device__ __forceinline__ void LoadSharedIf(bool have, uint32_t at, uint4& to) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(at), "r"(static_cast<uint32_t>(have)));
}
__device__ __forceinline__ void LoadSharedIf(bool have, uint32_t at, uint2& to) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.shared.v2.u32 {%0, %1}, [%2];\n}"
               : "+r"(to.x), "+r"(to.y)
               : "r"(at), "r"(static_cast<uint32_t>(have)));
}

// Words 0 and 1 of streams, or 2 and 3 in the lanes of columns 4 to 7, of four levels of positions from t on.
// Requires: at least four masks, in shared memory.
__device__ __forceinline__ void LoadHalves(const SplitArgs& args, const WeightStreams& streams, int t, uint32_t levels,
                                           uint2 (&to)[4]) {
  const uint32_t row_bytes = static_cast<uint32_t>(args.av.levels) * 16;
  const uint32_t at = streams.at + ((threadIdx.x & 16) != 0 ? 8 : 0) + (t & (streams.masks - 1)) * row_bytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = make_uint2(0, 0);
    LoadSharedIf((levels & 0xffu << (8 * i)) != 0, __dp4a(levels, 16u << (8 * i), at + i * row_bytes), to[i]);
  }
}
// Whole streams of the same, of any number of masks, or from memory.
__device__ __forceinline__ void LoadWhole(const SplitArgs& args, const WeightStreams& streams, int t, uint32_t levels,
                                          uint4 (&to)[4]) {
  if (streams.masks > 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = static_cast<uint32_t>((t + i) & (streams.masks - 1));
      const uint32_t level = levels >> (8 * i) & 0xff;
      to[i] = make_uint4(0, 0, 0, 0);
      LoadSharedIf(level != 0, streams.at + (row * static_cast<uint32_t>(args.av.levels) + level) * 16, to[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t level = levels >> (8 * i) & 0xff;
      LoadStreamIf(level != 0, args.av, t + i, static_cast<int>(level), to[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = Reordered(to[i]);
}

// Values of a warp's half of the dimensions, of its next group of 16 positions.
template <int kHeadDim>
struct ValueGroups {
  static constexpr int kWords = kHeadDim / 64;
  static constexpr int kSlots = kResidentWarps / 2;  // warps with the same half
  TilePages<1> pages;
  int32_t page;          // of the group behind it
  const uint32_t* base;  // of the KV head's values in page 0
  int32_t stride;        // words of a page
  uint4 v[kWords];

  __device__ __forceinline__ ValueGroups(const KvView& kv, const Stripes& b)
      : pages(kv, b, Slot() * kGroupDims, kSlots * kGroupDims),
        base(kv.v_words + kv.VWord(0, b.heads.kv_head, 0, 0)),
        stride(kv.num_kv_heads * (kHeadDim << (kv.page_shift - 2))) {
    const uint32_t* from = Place(kv, b, pages.Next(kv, b), Slot());
    page = pages.Next(kv, b);
#pragma unroll
    for (int m = 0; m < kWords; ++m) Load(from, m);
  }

  __device__ static int Slot() { return static_cast<int>(threadIdx.x >> 6); }
  // The first of this lane's dimensions, and its positions of a group.
  __device__ static int Half() { return static_cast<int>(threadIdx.x >> 5 & 1); }
  __device__ static int Dim() { return Half() * (kHeadDim / 2) + static_cast<int>(threadIdx.x & 31) / 4 * 4; }
  __device__ static int Own() { return static_cast<int>(threadIdx.x & 3) * 4; }

  // Values of positions from local position `i` on, `i` a multiple of 4.
  __device__ __forceinline__ const uint32_t* Four(const KvView& kv, const Stripes& b, int32_t at, int i) const {
    const int t = min(b.Token(i), b.row.length - 1);
    return base + static_cast<int64_t>(at) * stride + (t & (kv.page_tokens - 1)) / 4 * kHeadDim;
  }
  // Where this lane's values of a group are.
  __device__ __forceinline__ const uint32_t* Place(const KvView& kv, const Stripes& b, int32_t at, int group) const {
    return Four(kv, b, at, group * kGroupDims + Own()) + Dim();
  }
  __device__ __forceinline__ void Load(const uint32_t* from, int m) {
    v[m] = __ldcg(reinterpret_cast<const uint4*>(from + 32 * m));
  }
  // Asks the L2 for half of the positions of a group, which a warp of the other dimensions does for the other half.
  __device__ __forceinline__ void Prefetch(const KvView& kv, const Stripes& b, int32_t at, int group) const {
    PrefetchL2(Four(kv, b, at, group * kGroupDims + Half() * 8), 8 * kHeadDim);
  }
};

// Adds a word of values, four dimensions of a lane's four positions. A tile of 16 x 8 has two of the dimensions in its rows.
template <bool kDirect, int j = 0>
__device__ __forceinline__ void AddWord(const uint4& v, const uint4 (&streams)[4], uint32_t bytes, uint32_t table,
                                        int32_t (&acc)[2][4]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 low = LookUpThermometer<j>(table, words[2 * h]);
    const uint4 high = OtherThermometer<IsShifted<kDirect>(j), j>(table, words[2 * h + 1]);
    BinaryMma(acc[h], low.x, high.x, low.y, high.y, streams[j].x, streams[j].y);
    BinaryMma(acc[h], low.z, high.z, low.w, high.w, streams[j].z, streams[j].w);
    if constexpr (j == 0) ByteMma(acc[h], NegativeBytes(words[2 * h]), NegativeBytes(words[2 * h + 1]), bytes);
  }
  if constexpr (j + 1 < 4) AddWord<kDirect, j + 1>(v, streams, bytes, table, acc);
}
// The same for up to four heads: a thermometer is an operand as it comes, words 0 and 1 in row i and 2 and 3 in row i + 8
// of a tile for every dimension; columns 0 to 3 are words 0 and 1 of the heads' streams, columns 4 to 7 words 2 and 3.
// Ones of streams where codes are negative are added up apart: all four dimensions are a step of byte MMA.
template <bool kDirect, int j = 0>
__device__ __forceinline__ void AddWord(const uint4& v, const uint2 (&streams)[4], uint32_t table,
                                        int32_t (&acc)[4][4]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  const auto add = [&](int w, const uint4& t) { BinaryMma(acc[w], t.x, t.y, t.z, t.w, streams[j].x, streams[j].y); };
  add(0, LookUpThermometer<j>(table, words[0]));
  add(1, OtherThermometer<kDirect, j>(table, words[1]));
  add(2, LookUpThermometer<j>(table, words[2]));
  add(3, LookUpThermometer<j>(table, words[3]));
  if constexpr (j + 1 < 4) AddWord<kDirect, j + 1>(v, streams, table, acc);
}
// Row i of the step: the first of the dimensions in columns 0 to 3, the third in columns 4 to 7; row i + 8: the others.
// Adds 128 for every one.
__device__ __forceinline__ void AddNegatives(const uint4& v, const uint32_t (&minus_ones)[2], int32_t (&acc)[4]) {
  constexpr uint32_t kSigns = 0x80808080u;  // -128 each
  ByteMma32(acc, v.x & kSigns, v.y & kSigns, v.z & kSigns, v.w & kSigns, minus_ones);
}

// p v of the stripe into `sums`: a warp takes half of the dimensions, 16 positions at a time. kHalves: up to four heads, and
// everything but values is in shared memory.
template <bool kHalves, bool kDirect, int kHeadDim, int kMaxHeads>
__device__ __forceinline__ void AddValues(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                          const WeightStreams& streams, uint32_t table, ValueGroups<kHeadDim>& values,
                                          int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  using Groups = ValueGroups<kHeadDim>;
  using Stream = std::conditional_t<kHalves, uint2, uint4>;
  constexpr int kWords = Groups::kWords;
  constexpr int kSlots = Groups::kSlots;
  constexpr int kTiles = kHalves ? 4 : 2;  // of a word
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int column = lane >> 2 & (kHalves ? 3 : 7);  // of queries' heads
  const float* from = scores.at + min(column, b.heads.count - 1) * scores.stride + Groups::Own();
  const int groups = column < b.heads.count ? b.count() / kGroupDims : 0;
  const KvView& kv = args.attention.kv;
  int32_t acc[kWords][kTiles][4] = {};
  [[maybe_unused]] int32_t negatives[kWords][4] = {};
  const auto levels_of = [&](int group) -> uint32_t {
    if (group >= groups) return 0;
    if constexpr (kHalves) return LoadSharedWord(SharedAddress(from) + group * (kGroupDims * 4));
    return *reinterpret_cast<const uint32_t*>(from + group * kGroupDims);
  };
  const auto load_streams = [&](int group, uint32_t levels, Stream(&to)[4]) {
    const int t = b.Token(group * kGroupDims + Groups::Own());
    if constexpr (kHalves) {
      LoadHalves(args, streams, t, levels, to);
    } else {
      LoadWhole(args, streams, t, levels, to);
    }
  };
  int group = Groups::Slot();
  uint32_t now = levels_of(group);
  uint32_t soon = levels_of(group + kSlots);
  Stream w[4];
  load_streams(group, now, w);
  const int end = b.count() / kGroupDims;
#pragma unroll 1
  for (; group < end; group += kSlots) {
    const uint32_t later = levels_of(group + 2 * kSlots);
    const uint32_t* place = values.Place(kv, b, values.page, group + kSlots);
    values.page = values.pages.Next(kv, b);
    const bool any = __any_sync(0xffffffffu, now != 0);
    const bool any_soon = __any_sync(0xffffffffu, soon != 0);
    const uint32_t bytes = kDirect ? MinusOnes(now) : MinusOnes(w);
    const uint32_t of_columns[2] = {lane < 16 ? bytes : 0, lane < 16 ? 0 : bytes};
    Stream next[4];
#pragma unroll
    for (int m = 0; m < kWords; ++m) {
      if (any) {
        if constexpr (kHalves) {
          AddNegatives(values.v[m], of_columns, negatives[m]);
          AddWord<kDirect>(values.v[m], w, table, acc[m]);
        } else {
          AddWord<kDirect>(values.v[m], w, bytes, table, acc[m]);
        }
      }
      if (m == 0) load_streams(group + kSlots, soon, next);
      if (any_soon) values.Load(place, m);
    }
    if (__any_sync(0xffffffffu, later != 0)) values.Prefetch(kv, b, values.page, group + 2 * kSlots);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = next[i];
    now = soon;
    soon = later;
  }
#pragma unroll
  for (int m = 0; m < kWords; ++m) {
#pragma unroll
    for (int x = 0; x < kTiles; ++x) {
      if constexpr (kHalves) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int head = (lane & 1) * 2 + i;
          int32_t sum = (lane & 2) != 0 ? acc[m][x][2 + i] : acc[m][x][i];
          if (x / 2 == (lane & 3) / 2) sum -= negatives[m][x % 2 * 2 + i] >> 7;
          if (head < b.heads.count) atomicAdd(&sums[head][Groups::Dim() + m * 32 + x], sum);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int head = (lane & 3) * 2 + i % 2;
          if (head < b.heads.count) atomicAdd(&sums[head][Groups::Dim() + m * 32 + x * 2 + i / 2], acc[m][x][i]);
        }
      }
    }
  }
}

template <bool kDirect, int kHeadDim, int kMaxHeads>
__device__ __forceinline__ void Values(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                       const WeightStreams& streams, uint32_t table, ValueGroups<kHeadDim>& values,
                                       int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  if constexpr (kMaxHeads <= kScoreHeads) {
    if (streams.masks >= 4 && scores.in_shared)
      return AddValues<true, kDirect>(args, b, scores, streams, table, values, sums);
  }
  AddValues<false, kDirect>(args, b, scores, streams, table, values, sums);
}

}  // namespace stoch::cuda
