// SPDX-License-Identifier: Apache-2.0
// p v of a block of the resident kernels, on binary tensor cores.
//
// Nothing in the loop waits for a load that was just issued: values are loaded a group ahead, as soon as those of this group
// are there, and streams of weights while this group is added up. Loads share few scoreboards, so that a load in a branch, or a
// page looked up on the way, would make every warp wait for the values that follow.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/split/resident_pages.cuh"

namespace stoch::cuda {

// Streams of weights that a block keeps in shared memory, [mask][level ^ Turn(mask)], of the masks of its positions.
struct WeightStreams {
  uint32_t at = 0;  // shared address
  int masks = 0;    // 0: they are read from memory

  // Equal levels of the lanes of a group, four positions apart, are in different banks. Requires: levels, a power of two.
  __device__ __forceinline__ static uint32_t Turn(int mask, int levels) {
    return static_cast<uint32_t>((mask >> 2 & 3) * 2 & (levels - 1));
  }
};

// The 16 bytes of shared memory at `at` where `have`; otherwise `to` stays as it is. Without a branch.
__device__ __forceinline__ void LoadSharedIf(bool have, uint32_t at, uint4& to) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(at), "r"(static_cast<uint32_t>(have)));
}
__device__ __forceinline__ uint2 LoadSharedPair(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

// Words 0 and 1 of streams, or 2 and 3 in the lanes of odd columns, of four levels of positions from `own` of a group on, a
// multiple of 4. Lanes with the halves of a stream are in the same half of the warp, which so loads eight streams. Those
// of level 0 have no ones, so no lane tests for them.
class SharedHalves {
 public:
  // Requires: four to 16 masks, in shared memory.
  __device__ __forceinline__ SharedHalves(const SplitArgs& args, const WeightStreams& streams, int own)
      : row_(static_cast<uint32_t>(args.av.levels) * 16) {
    const int mask = own & (streams.masks - 1);
    at_ = streams.at + ((threadIdx.x & 4) != 0 ? 8 : 0) + mask * row_;
    turn_ = WeightStreams::Turn(mask, args.av.levels) * 0x01010101u;
    asm volatile("" : "+r"(at_), "+r"(turn_));  // kept
  }
  __device__ __forceinline__ void Load(uint32_t levels, uint2 (&to)[4]) const {
    const uint32_t turned = levels ^ turn_;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = LoadSharedPair(__dp4a(turned, 16u << (8 * i), at_ + i * row_));
  }

 private:
  uint32_t at_;
  uint32_t row_;
  uint32_t turn_;
};
// Halves of the streams of any number of masks, of positions from t on, from memory.
__device__ __forceinline__ void LoadMemoryHalves(const ScTables& tables, int t, uint32_t levels, uint2 (&to)[4]) {
  const bool is_second = (threadIdx.x & 4) != 0;
  const bool have = !is_second || tables.stream_words == 4;
  const auto row = static_cast<uint32_t>(tables.levels * tables.stream_words);
  const uint32_t* from = tables.streams + (is_second ? 2 : 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t level = levels >> (8 * i) & 0xff;
    const uint32_t* at = from + (static_cast<uint32_t>(t + i) & static_cast<uint32_t>(tables.masks - 1)) * row +
                         level * static_cast<uint32_t>(tables.stream_words);
    to[i] = make_uint2(0, 0);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
        "@p ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %4;\n}"
        : "+r"(to[i].x), "+r"(to[i].y)
        : "l"(at), "r"(static_cast<uint32_t>(have && level != 0)), "l"(KeepPolicy()));
  }
}
// Whole streams of the same, in either.
__device__ __forceinline__ void LoadWhole(const SplitArgs& args, const WeightStreams& streams, int t, uint32_t levels,
                                          uint4 (&to)[4]) {
  if (streams.masks > 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int mask = (t + i) & (streams.masks - 1);
      const uint32_t level = levels >> (8 * i) & 0xff;
      const uint32_t place = level ^ WeightStreams::Turn(mask, args.av.levels);
      to[i] = make_uint4(0, 0, 0, 0);
      LoadSharedIf(level != 0, streams.at + (mask * static_cast<uint32_t>(args.av.levels) + place) * 16, to[i]);
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

// In units of four words of values, from the KV head's in page 0 on.
struct ValuePlace {
  __device__ static uint32_t Of(const KvView& kv, int32_t page, int slot) {
    const auto units = static_cast<uint32_t>(kv.head_dim / 4);  // of four positions of a KV head
    const uint32_t page_units = static_cast<uint32_t>(kv.num_kv_heads) * units << (kv.page_shift - 2);
    return static_cast<uint32_t>(page) * page_units + static_cast<uint32_t>(slot / 4) * units;
  }
  __device__ static uint64_t Words(uint32_t place) { return uint64_t{place} * 4; }
};

// Values of a warp's half of the dimensions, of its next group of 16 positions.
template <int kHeadDim>
struct ValueGroups {
  static constexpr int kWords = kHeadDim / 64;
  static constexpr int kSlots = kResidentWarps / 2;  // warps with the same half
  TilePlaces<1, ValuePlace> places;
  uint32_t place;       // of the group after it
  const uint32_t* own;  // of the KV head's values in page 0, this lane's
  uint4 v[kWords];

  __device__ __forceinline__ ValueGroups(const KvView& kv, const Stripes& b)
      : places(kv, b, Slot() * kGroupDims, kSlots * kGroupDims) {
    own = kv.v_words + kv.VWord(0, b.heads.kv_head, Own() / 4, Dim());
    asm volatile("" : "+l"(own));  // kept, or it would be made again for every group
    Load(places.Next(), v);
    place = places.Next();
  }

  __device__ static int Slot() { return static_cast<int>(threadIdx.x >> 6); }
  // The first of this lane's dimensions, and its positions of a group.
  __device__ static int Dim() {
    return static_cast<int>(threadIdx.x >> 5 & 1) * (kHeadDim / 2) + static_cast<int>(threadIdx.x & 31) / 4 * 4;
  }
  __device__ static int Own() { return static_cast<int>(threadIdx.x & 3) * 4; }

  // Calls even() and odd() in turn, which move `group` on by kSlots and take a place each, until `end`. Requires: an even
  // number of places was taken before.
  template <typename Even, typename Odd>
  __device__ __forceinline__ void InTurns(const KvView& kv, const Stripes& b, int& group, int end, const Even& even,
                                          const Odd& odd) {
    while (group < end) {
      places.Refill(kv, b);
      const int until = min(end, group + places.Left() * kSlots);
#pragma unroll 1
      while (group < until) {
        even();
        if (group >= until) break;  // the end, as Left() is even
        odd();
      }
    }
  }
  // volatile: issued here, with no load in between.
  __device__ __forceinline__ void Load(uint32_t at, uint4 (&to)[kWords]) const {
    const uint32_t* from = own + ValuePlace::Words(at);
#pragma unroll
    for (int m = 0; m < kWords; ++m) {
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[m].x), "=r"(to[m].y), "=r"(to[m].z), "=r"(to[m].w)
                   : "l"(from + m * 2 * KvView::kTileDims));
    }
  }
};

// Adds a word of values, four dimensions of a lane's four positions. A tile of 16 x 8 has two of the dimensions in its rows.
template <bool kDirect, int j = 0>
__device__ __forceinline__ void AddWord(const uint4& v, const uint4 (&streams)[4], uint32_t bytes, uint32_t table,
                                        int32_t (&acc)[2][4]) {
  AddPosition<IsShifted<kDirect>(j), j>(v, streams[j], bytes, table, acc);
  if constexpr (j + 1 < 4) AddWord<kDirect, j + 1>(v, streams, bytes, table, acc);
}
// As above, for up to four heads: a thermometer is an operand as it comes, words 0 and 1 in row i and 2 and 3 in row i + 8
// of a tile for every dimension; even columns are words 0 and 1 of the heads' streams, odd columns words 2 and 3.
// Ones of streams where codes are negative are added up apart: all four dimensions are a step of byte MMA.
// kMoreShifts: five of sixteen thermometers by shifts instead of four.
template <bool kDirect, bool kMoreShifts, int j = 0>
__device__ __forceinline__ void AddWord(const uint4& v, const uint2 (&streams)[4], uint32_t table,
                                        int32_t (&acc)[4][4]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  const auto add = [&](int w, const uint4& t) { BinaryMma(acc[w], t.x, t.y, t.z, t.w, streams[j].x, streams[j].y); };
  add(0, LookUpThermometer<j>(table, words[0]));
  add(1, OtherThermometer<kDirect, j>(table, words[1]));
  add(2, LookUpThermometer<j>(table, words[2]));
  constexpr bool kIsShifted = kDirect && kMoreShifts && j == 0;
  add(3, OtherThermometer<kIsShifted, j>(table, words[3]));
  if constexpr (j + 1 < 4) AddWord<kDirect, kMoreShifts, j + 1>(v, streams, table, acc);
}
// Row i of the step: the first of the dimensions in even columns, the third in odd ones; row i + 8: the others.
// Adds 128 for every one.
__device__ __forceinline__ void AddNegatives(const uint4& v, const uint32_t (&minus_ones)[2], int32_t (&acc)[4]) {
  constexpr uint32_t kSigns = 0x80808080u;  // -128 each
  ByteMma32(acc, v.x & kSigns, v.y & kSigns, v.z & kSigns, v.w & kSigns, minus_ones);
}

// How a lane takes streams of weights. In halves: for up to four heads, whose levels are in shared memory.
enum class Streams : uint8_t { kWhole, kSharedHalves, kMemoryHalves };

// A lane's sums of AddValues to `sums`.
template <bool kHalves, int kHeadDim, int kWords, int kTiles, int kMaxHeads>
__device__ __forceinline__ void AddTileSums(const int32_t (&acc)[kWords][kTiles][4],
                                            const int32_t (&negatives)[kWords][4], int heads,
                                            int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int m = 0; m < kWords; ++m) {
    const int dim = ValueGroups<kHeadDim>::Dim() + m * 32;
#pragma unroll
    for (int x = 0; x < kTiles; ++x) {
      if constexpr (kHalves) {
        const int head = lane & 3;
        const int32_t sum = acc[m][x][0] + acc[m][x][3] - (negatives[m][x % 2 * 2 + x / 2] >> 7);
        if (head < heads) atomicAdd(&sums[head][dim + x], sum);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int head = (lane & 3) * 2 + i % 2;
          if (head < heads) atomicAdd(&sums[head][dim + x * 2 + i / 2], acc[m][x][i]);
        }
      }
    }
  }
}

// p v of the stripe into `sums`: a warp takes half of the dimensions, 16 positions at a time. before_sums(): called before
// anything is added to `sums`.
template <Streams kStreams, bool kDirect, bool kMoreShifts, int kHeadDim, int kMaxHeads, typename BeforeSums>
__device__ __forceinline__ void AddValues(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                          const WeightStreams& streams, uint32_t table, ValueGroups<kHeadDim>& values,
                                          int32_t (&sums)[kMaxHeads][kHeadDim + 1], const BeforeSums& before_sums) {
  using Groups = ValueGroups<kHeadDim>;
  constexpr bool kHalves = kStreams != Streams::kWhole;
  using Stream = std::conditional_t<kHalves, uint2, uint4>;
  constexpr int kWords = Groups::kWords;
  constexpr int kSlots = Groups::kSlots;
  constexpr int kTiles = kHalves ? 4 : 2;  // of a word
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int column = lane >> (kHalves ? 3 : 2);  // of queries' heads
  const float* from = scores.at + min(column, b.heads.count - 1) * scores.stride + Groups::Own();
  const int groups = column < b.heads.count ? b.count() / kGroupDims : 0;
  int32_t acc[kWords][kTiles][4] = {};
  int32_t negatives[kWords][4] = {};  // of halves
  const auto levels_of = [&](int group) -> uint32_t {
    if (group >= groups) return 0;
    if constexpr (kHalves) return LoadSharedWord(SharedAddress(from) + group * (kGroupDims * 4));
    return *reinterpret_cast<const uint32_t*>(from + group * kGroupDims);
  };
  const SharedHalves halves(args, streams, Groups::Own());
  const auto load_streams = [&](int group, uint32_t levels, Stream(&to)[4]) {
    const int t = b.Token(group * kGroupDims + Groups::Own());
    if constexpr (kStreams == Streams::kSharedHalves) {
      halves.Load(levels, to);
    } else if constexpr (kHalves) {
      LoadMemoryHalves(args.av, t, levels, to);
    } else {
      LoadWhole(args, streams, t, levels, to);
    }
  };
  // A group's operands. Two take turns, double buffered, so that loads go to registers that no instruction waits for.
  struct Turn {
    uint4 v[kWords];
    Stream w[4];
    uint32_t levels;
    bool any;
  };
  uint32_t even = (lane & 4) != 0 ? 0 : 0xffffffffu;  // column
  asm volatile("" : "+r"(even));                      // kept
  const uint32_t zero = OpaqueZero<kHeadDim>(args.attention.kv);
  const auto any_of = [](uint32_t levels) { return __any_sync(0xffffffffu, levels != 0) != 0; };
  int group = Groups::Slot();
  Turn turns[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) turns[i].levels = levels_of(group + i * kSlots);
  load_streams(group, turns[0].levels, turns[0].w);
#pragma unroll
  for (int m = 0; m < kWords; ++m) turns[0].v[m] = values.v[m];
#pragma unroll
  for (int i = 0; i < 2; ++i) turns[i].any = any_of(turns[i].levels);
  uint32_t loaded = values.place;
  const auto step = [&](Turn& now, Turn& next) {
    // Where the next group has no weights, what was loaded last: what a branch loads would be copied, which waits for it. The
    // place depends on the values of this group, so that nothing waits for these after the next.
    loaded = (next.any ? values.place : loaded) | (now.v[kWords - 1].w & zero);
    values.Load(loaded, next.v);
    __syncwarp();  // loads stay before it
    const uint32_t bytes = kDirect ? MinusOnes(now.levels) : MinusOnes(now.w);
    const uint32_t of_columns[2] = {bytes & even, bytes & ~even};
    uint32_t later = 0;
#pragma unroll
    for (int m = 0; m < kWords; ++m) {
      if (now.any) {
        if constexpr (kHalves) {
          AddNegatives(now.v[m], of_columns, negatives[m]);
          AddWord<kDirect, kMoreShifts>(now.v[m], now.w, table, acc[m]);
        } else {
          AddWord<kDirect>(now.v[m], now.w, bytes, table, acc[m]);
        }
      }
      if (m > 0) continue;
      values.place = values.places.Next();
      load_streams(group + kSlots, next.levels, next.w);
      later = levels_of(group + 2 * kSlots);
    }
    asm volatile("" : "+r"(later));  // keeps the wait for it out of here
    now.levels = later;
    now.any = any_of(later);
    group += kSlots;
  };
  const int end = b.count() / kGroupDims;
  values.InTurns(
      args.attention.kv, b, group, end, [&] { step(turns[0], turns[1]); }, [&] { step(turns[1], turns[0]); });
  before_sums();
  AddTileSums<kHalves, kHeadDim>(acc, negatives, b.heads.count, sums);
}

template <bool kDirect, bool kMoreShifts, int kHeadDim, int kMaxHeads, typename BeforeSums>
__device__ __forceinline__ void Values(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                       const WeightStreams& streams, uint32_t table, ValueGroups<kHeadDim>& values,
                                       int32_t (&sums)[kMaxHeads][kHeadDim + 1], const BeforeSums& before_sums) {
  const auto add = [&]<Streams kStreams>() {
    constexpr bool kMore = kMoreShifts && kStreams == Streams::kSharedHalves;
    AddValues<kStreams, kDirect, kMore>(args, b, scores, streams, table, values, sums, before_sums);
  };
  if (kMaxHeads > kScoreHeads || !scores.in_shared) {
    add.template operator()<Streams::kWhole>();
  } else if constexpr (kMaxHeads <= kScoreHeads) {
    streams.masks >= 4 ? add.template operator()<Streams::kSharedHalves>()
                       : add.template operator()<Streams::kMemoryHalves>();
  }
}

}  // namespace stoch::cuda
