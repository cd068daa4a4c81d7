// SPDX-License-Identifier: Apache-2.0
// p v of a block of the resident kernels, on binary tensor cores.
//
// No instruction in the loop waits for a load that was just issued: values are loaded one group of 16 positions ahead,
// as soon as the values of the current group have arrived, and streams of weights while the current group is
// multiplied. Loads share few scoreboards, so a load in a branch, or a look-up of a page on the way, would make every
// warp wait for the values that are loaded after it.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/split/resident_pages.cuh"

namespace stoch::cuda {

// Streams of weights in shared memory, 16 bytes each, at [mask][level ^ Turn(mask)], for the masks of the block's
// positions.
struct WeightStreams {
  uint32_t at = 0;  // shared address of the streams
  int masks = 0;    // number of masks; 0: streams are read from global memory

  // Swizzle: equal levels of the lanes of a group, whose positions are four apart, are in different banks. Requires:
  // levels is a power of two.
  __device__ __forceinline__ static uint32_t Turn(int mask, int levels) {
    return static_cast<uint32_t>((mask >> 2 & 3) * 2 & (levels - 1));
  }
};

// Loads the 16 bytes of shared memory at `at` into `to` if `have`, else leaves `to` as it is; without a branch.
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

// Loads halves of streams of weights from shared memory, for the levels of a lane's four positions: words 0 and 1 in
// lanes of even columns, words 2 and 3 in lanes of odd columns. The two lanes that load a stream's halves are in the
// same half of the warp, so each half loads eight whole streams. The streams of level 0 are there too, without ones, so
// no lane tests for level 0.
class SharedHalves {
 public:
  // own: the lane's first position in a group of 16, a multiple of 4. Requires: between 4 and 16 masks in shared
  // memory.
  __device__ __forceinline__ SharedHalves(const SplitArgs& args, const WeightStreams& streams, int own)
      : row_(static_cast<uint32_t>(args.av.levels) * 16) {
    const int mask = own & (streams.masks - 1);
    at_ = streams.at + ((threadIdx.x & 4) != 0 ? 8 : 0) + mask * row_;
    turn_ = WeightStreams::Turn(mask, args.av.levels) * 0x01010101u;
    asm volatile("" : "+r"(at_), "+r"(turn_));  // keeps at_ and turn_ in registers
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
// Loads from global memory the halves of streams that SharedHalves loads from shared memory, for any number of masks.
// t: the first of the lane's four positions.
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
// Loads the whole streams of four levels, of positions t to t + 3, from shared memory if streams.masks > 0, else from
// global memory. Their words are in the order of the thermometer table (Reordered).
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

// A group of values is located by one number, its place: the offset, in units of four words, from the KV head's first
// value in page 0.
struct ValuePlace {
  __device__ static uint32_t Of(const KvView& kv, int32_t page, int slot) {
    const auto units = static_cast<uint32_t>(kv.head_dim / 4);  // units of a KV head's dimensions, for four positions
    const uint32_t page_units = static_cast<uint32_t>(kv.num_kv_heads) * units << (kv.page_shift - 2);
    return static_cast<uint32_t>(page) * page_units + static_cast<uint32_t>(slot / 4) * units;
  }
  __device__ static uint64_t Words(uint32_t place) { return uint64_t{place} * 4; }
};

// The values that a warp multiplies: a group of 16 positions at a time in half of the dimensions, loaded one group
// ahead.
template <int kHeadDim>
struct ValueGroups {
  static constexpr int kWords = kHeadDim / 64;
  // warps that share one half of the dimensions, each with its own groups
  static constexpr int kSlots = kResidentWarps / 2;
  TilePlaces<1, ValuePlace> places;
  uint32_t place;       // place of the group after the one in `v`
  const uint32_t* own;  // this lane's first word of the KV head's values in page 0
  uint4 v[kWords];

  __device__ __forceinline__ ValueGroups(const KvView& kv, const Stripes& b)
      : places(kv, b, Slot() * kGroupDims, kSlots * kGroupDims) {
    own = kv.v_words + kv.VWord(0, b.heads.kv_head, Own() / 4, Dim());
    asm volatile("" : "+l"(own));  // kept in a register; the compiler would compute it again for every group
    Load(places.Next(), v);
    place = places.Next();
  }

  __device__ static int Slot() { return static_cast<int>(threadIdx.x >> 6); }
  // Dim() is the first of this lane's dimensions, Own() the first of its four positions of a group.
  __device__ static int Dim() {
    return static_cast<int>(threadIdx.x >> 5 & 1) * (kHeadDim / 2) + static_cast<int>(threadIdx.x & 31) / 4 * 4;
  }
  __device__ static int Own() { return static_cast<int>(threadIdx.x & 3) * 4; }

  // Calls even() and odd() alternately until `group` reaches `end`. Each call must advance `group` by kSlots and take
  // one place from `places`. Requires: an even number of places was taken before.
  template <typename Even, typename Odd>
  __device__ __forceinline__ void InTurns(const KvView& kv, const Stripes& b, int& group, int end, const Even& even,
                                          const Odd& odd) {
    while (group < end) {
      places.Refill(kv, b);
      const int until = min(end, group + places.Left() * kSlots);
#pragma unroll 1
      while (group < until) {
        even();
        if (group >= until) break;  // `end` is reached, because Left() is even
        odd();
      }
    }
  }
  // Loads this lane's values of the group at place `at`. volatile: the loads are issued here, with no other load
  // between them.
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

// Adds the products p v of positions j to 3 of a lane's four (the caller passes j = 0), for the four dimensions in v,
// with whole streams. A 16 x 8 tile has two of the dimensions in its rows.
template <bool kDirect, int j = 0>
__device__ __forceinline__ void AddWord(const uint4& v, const uint4 (&streams)[4], uint32_t bytes, uint32_t table,
                                        int32_t (&acc)[2][4]) {
  AddPosition<IsShifted<kDirect>(j), j>(v, streams[j], bytes, table, acc);
  if constexpr (j + 1 < 4) AddWord<kDirect, j + 1>(v, streams, bytes, table, acc);
}
// Adds the products p v of positions j to 3 of four with halves of streams, for up to four heads. One whole thermometer
// is a lane's operand A: for each dimension, words 0 and 1 are in row i and words 2 and 3 in row i + 8 of a tile. Even
// columns have words 0 and 1 of the heads' streams, odd columns words 2 and 3. The correction for negative codes is
// left to AddNegatives, one byte MMA for all four dimensions. kMoreShifts: five of sixteen thermometers are made by
// shifts instead of four.
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
// Adds 128 times the ones of streams at negative codes to `acc`: in row i the first dimension in even columns and the
// third in odd ones, in row i + 8 the second and the fourth. minus_ones: minus the ones, [0] is 0 in odd columns and
// [1] is 0 in even ones.
__device__ __forceinline__ void AddNegatives(const uint4& v, const uint32_t (&minus_ones)[2], int32_t (&acc)[4]) {
  constexpr uint32_t kSigns = 0x80808080u;  // -128 in the byte of every negative code
  ByteMma32(acc, v.x & kSigns, v.y & kSigns, v.z & kSigns, v.w & kSigns, minus_ones);
}

// How a lane loads streams of weights: whole streams (from shared or global memory), or halves of streams from shared
// or from global memory. Halves require at most four heads, and levels in shared memory.
enum class Streams : uint8_t { kWhole, kSharedHalves, kMemoryHalves };

// Adds a lane's accumulators of AddValues to `sums`, [head][dimension] in shared memory.
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

// Adds p v of the block's positions to `sums`: a warp takes half of the dimensions, 16 positions at a time. table:
// shared address of this lane's thermometers (LaneTable). before_sums(): called before anything is added to `sums`.
// Called by all threads.
template <Streams kStreams, bool kDirect, bool kMoreShifts, int kHeadDim, int kMaxHeads, typename BeforeSums>
__device__ __forceinline__ void AddValues(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                          const WeightStreams& streams, uint32_t table, ValueGroups<kHeadDim>& values,
                                          int32_t (&sums)[kMaxHeads][kHeadDim + 1], const BeforeSums& before_sums) {
  using Groups = ValueGroups<kHeadDim>;
  constexpr bool kHalves = kStreams != Streams::kWhole;
  using Stream = std::conditional_t<kHalves, uint2, uint4>;
  constexpr int kWords = Groups::kWords;
  constexpr int kSlots = Groups::kSlots;
  constexpr int kTiles = kHalves ? 4 : 2;  // tiles of accumulators for each word of values
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int column = lane >> (kHalves ? 3 : 2);  // the query head of this lane's column in operand B
  const float* from = scores.at + min(column, b.heads.count - 1) * scores.stride + Groups::Own();
  const int groups = column < b.heads.count ? b.count() / kGroupDims : 0;
  int32_t acc[kWords][kTiles][4] = {};
  int32_t negatives[kWords][4] = {};  // sums of AddNegatives, for halves of streams
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
  // Operands of a group of 16 positions. Two take turns (double buffer), so that loads go to registers that no
  // instruction waits for.
  struct Turn {
    uint4 v[kWords];
    Stream w[4];
    uint32_t levels;
    bool any;
  };
  uint32_t even = (lane & 4) != 0 ? 0 : 0xffffffffu;  // mask of all ones in lanes of even columns, else 0
  asm volatile("" : "+r"(even));                      // keeps `even` in a register
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
    // If the next group has no weights, the place loaded last is loaded again: values loaded in a branch would have to
    // be copied, which waits for them. The address depends on the values of the current group, so that no instruction
    // waits for the current values after the next load is issued.
    loaded = (next.any ? values.place : loaded) | (now.v[kWords - 1].w & zero);
    values.Load(loaded, next.v);
    __syncwarp();  // keeps the loads before this point
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
    asm volatile("" : "+r"(later));  // keeps the compiler from moving the wait for the load to this point
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
