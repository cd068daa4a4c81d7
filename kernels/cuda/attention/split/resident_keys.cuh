// SPDX-License-Identifier: Apache-2.0
// q k of a block of the resident kernel (resident.cu), on binary tensor cores. The dimensions are divided among the
// warps, so that a warp keeps the queries' streams for its dimensions in registers and reads only thermometers from
// shared memory. The counts of all dimensions are added up in the shared memory of the scores.
#pragma once

#include "kernels/cuda/attention/split/resident_pages.cuh"

namespace stoch::cuda {

// The streams of the block's queries in a warp's dimensions, as operands B in registers.
template <int kGroups, int kN>
struct QueryRegisters {
  uint4 streams[kN][kGroups][4];
  // After Ask: the codes of the queries. After Load: minus the number of ones of each code's stream, a byte each.
  uint32_t bytes[kN][kGroups];

  // Loads the codes of the queries into `bytes`.
  template <int kHeadDim>
  __device__ __forceinline__ void Ask(const Stripes& b, const Queries& queries, int first_group) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int at = Head(n) * (kHeadDim / 4) + Word(first_group + g);
        bytes[n][g] = Head(n) < b.heads.count ? queries.words[at] : 0;
      }
    }
  }
  // Loads the streams of the codes in `bytes`: in even columns the streams of positive codes, in odd columns those of
  // negative codes. All loads are issued before any result is used and without branches; otherwise a warp would wait
  // for one load after the other.
  template <bool kDirect>
  __device__ __forceinline__ void Load(const SplitArgs& args, int first_group) {
    const uint32_t turn = (threadIdx.x & 4) != 0 ? 0 : 0x80808080u;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t codes = bytes[n][g] ^ turn;  // sign bit 1: the code belongs in this lane's column
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int level = static_cast<int>(codes >> (8 * j) & 0x7f);
          const bool have = (codes >> (8 * j) & 0x80) != 0 && level != 0;
          LoadStreamIf(have, args.qk, Word(first_group + g) * 4 + j, level, streams[n][g][j]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if constexpr (kDirect) {
          const uint32_t codes = bytes[n][g] ^ turn;
          const uint32_t own = (codes >> 7 & 0x01010101u) * 0xff;
          bytes[n][g] = MinusOnes(codes & own & 0x7f7f7f7fu);
        } else {
          bytes[n][g] = MinusOnes(streams[n][g]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) streams[n][g][j] = Reordered(streams[n][g][j]);
      }
    }
  }

 private:
  __device__ static int Head(int n) { return n * kScoreHeads + static_cast<int>(threadIdx.x >> 3 & 3); }
  __device__ static int Word(int group) { return group * 4 + static_cast<int>(threadIdx.x & 3); }
};

// Adds the products q k of 32 keys in one group of 16 dimensions to `acc`, for bytes j to 3 of every word of codes (the
// caller passes j = 0), and corrects for negative codes of keys (mma.cuh).
template <bool kDirect, int kN, int j = 0>
__device__ __forceinline__ void AddKeys(const uint4& k, uint32_t table, const uint4 (&streams)[kN][4],
                                        const uint32_t (&bytes)[kN], int32_t (&acc)[2][kN][4]) {
  const uint32_t words[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint4 low = LookUpThermometer<j>(table, words[2 * m]);
    const uint4 high = OtherThermometer<IsShifted<kDirect>(j), j>(table, words[2 * m + 1]);
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

// Adds a lane's counts of the four positions from i on to `counts` in shared memory, [head][stride], where the counts
// of all dimensions are added up. Two neighbouring positions share a word, 16 bits each (enough for at most 128
// dimensions of 128 cycles). Odd heads use odd words and even heads even words, so that the words of a warp are in
// different banks.
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

struct PageOnly {
  __device__ static uint32_t Of(const KvView&, int32_t page, int) { return static_cast<uint32_t>(page); }
};

// The keys that a warp multiplies, a tile of 32 positions at a time in the warp's dimensions, and the page of the next
// tile.
template <int kHeadDim, int kGroups>
struct KeyTiles {
  static constexpr int kSlices = kHeadDim / (kGroups * kGroupDims);  // slices of the dimensions; a warp has one
  static constexpr int kSlots = kResidentWarps / kSlices;  // warps that share one slice, each with its own tiles
  static constexpr int kTile = 32;
  static constexpr int kStep = kSlots * kTile;
  TilePlaces<2, PageOnly> pages;
  int32_t page;  // page of the tile after the one in `k`
  uint4 k[kGroups];

  __device__ static int Group() { return static_cast<int>(threadIdx.x >> 5) % kSlices * kGroups; }
  __device__ static int Slot() { return static_cast<int>(threadIdx.x >> 5) / kSlices; }
  // Returns the first of this lane's four positions in a tile.
  __device__ static int Own() { return static_cast<int>(threadIdx.x & 31) / 4 * 4; }

  // Returns the address of this lane's words of the tile at local position `i`, which is in page `in`.
  __device__ __forceinline__ const uint32_t* Place(const KvView& kv, const Stripes& b, int32_t in, int i) const {
    const int t = min(b.Token(i + Own()), b.row.length - 1) & ~3;
    return kv.k_words +
           kv.KWord(in, b.heads.kv_head, Group() * 4 + static_cast<int>(threadIdx.x & 3), t & (kv.page_tokens - 1));
  }
  // Prefetches the tile at local position `i`, which is in page `in`, into L2; each lane prefetches at most one line.
  __device__ __forceinline__ void Prefetch(const KvView& kv, const Stripes& b, int32_t in, int i) const {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int t = min(b.Token(i + lane / 16 * 16), b.row.length - 1) & ~15;
    if (lane % 16 < kGroups * 2)
      PrefetchL2Line(kv.k_words + kv.KWord(in, b.heads.kv_head, Group() * 4, t & (kv.page_tokens - 1)) +
                     lane % 16 * 32);
  }
  __device__ __forceinline__ void Load(const uint32_t* from, int g) {
    k[g] = __ldcg(reinterpret_cast<const uint4*>(from + g * (4 * KvView::kTileKey)));
  }
  // Starts at the tiles from local position `begin` on; loads only page numbers.
  __device__ __forceinline__ KeyTiles(const KvView& kv, const Stripes& b, int begin)
      : pages(kv, b, begin + Slot() * kTile, kStep) {}
  // Loads the warp's first tile.
  __device__ __forceinline__ void Begin(const KvView& kv, const Stripes& b, int begin) {
    const int i = begin + Slot() * kTile;
    const uint32_t* from = Place(kv, b, pages.Next(), i);
    page = pages.Next();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) Load(from, g);
  }
};

// Adds the counts of local positions [begin, end) to `counts`, [head][position - begin], which are 0 before. Called by
// all threads. Requires: keys.Begin(begin).
template <bool kDirect, int kHeadDim, int kN, int kGroups>
__device__ __forceinline__ void CountKeys(const SplitArgs& args, const Stripes& b, int begin, int end, uint32_t table,
                                          const QueryRegisters<kGroups, kN>& q, KeyTiles<kHeadDim, kGroups>& keys,
                                          int32_t* counts) {
  using Tiles = KeyTiles<kHeadDim, kGroups>;
  const KvView& kv = args.attention.kv;
#pragma unroll 1
  for (int tile = begin + Tiles::Slot() * Tiles::kTile; tile < end; tile += Tiles::kStep) {
    int32_t acc[2][kN][4] = {};
    const uint32_t* from = keys.Place(kv, b, keys.page, tile + Tiles::kStep);
    // Nothing is loaded past the end, where Place clamps to the last position: all warps of the row would load the same
    // lines at once.
    const bool has_next = tile + Tiles::kStep < end;
    keys.pages.Refill(kv, b);
    keys.page = keys.pages.Next();
    if (tile + 2 * Tiles::kStep < end) keys.Prefetch(kv, b, keys.page, tile + 2 * Tiles::kStep);
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
      AddKeys<kDirect, kN>(keys.k[g], table, streams, bytes, acc);
      if (has_next) keys.Load(from, g);
    }
    const int i = tile + Tiles::Own();
    if (i < end) AddCounts<kN>(acc, b.heads.count, args.resident_positions + kSplitResidentPad, i - begin, counts);
  }
}

}  // namespace stoch::cuda
