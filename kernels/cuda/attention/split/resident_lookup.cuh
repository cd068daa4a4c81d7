// SPDX-License-Identifier: Apache-2.0
// q k by look-ups, of a block of the resident kernel and up to four query heads of 128 dimensions.
//
// The table has a word for every dimension and level of a key: the signed counts of the four heads, a byte each. Words of
// the 32 words of a key are next to each other, so lanes that look up in 32 different words of keys, whatever their codes
// are, find them in 32 different banks. A lane therefore takes half of a key, and begins where no other lane of its warp
// does. A negative code's count is the complement of the word, -count - 1, and the key's number of negative codes is added
// at the end. Byte MMAs with ones of a head's byte add the words up: a row of a tile is four lanes, a column one of two
// lanes and a head.
//
// A byte does not hold 128, the count of two largest levels under 128 cycles. A query whose largest levels are positive is
// looked up with its signs turned, since -128 does fit; where it has both, counts of positive ones are stored less one, and
// the signs of keys there say what is missing.
#pragma once

#include "kernels/cuda/attention/split/resident_pages.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

inline constexpr int kLookupDim = 128;
inline constexpr int kLookupWords = kLookupDim / 4;  // of a key
inline constexpr int kLookupLevels = 128;
inline constexpr int kLookupTile = kSplitLookupTile;  // keys of a warp at a time
inline constexpr int kLookupTableBytes = kLookupDim * kLookupLevels * 4;
inline constexpr int kLookupRowBytes = kLookupTile * 4;  // of a word of all keys of a tile
// A row more in the middle: the second half of the words is in the other half of the banks.
inline constexpr int kLookupTileBytes = (kLookupWords + 1) * kLookupRowBytes;
inline constexpr int kLookupCountBytes = kScoreHeads * kLookupDim * kLookupLevels;  // of count rows on their way

// Dimensions of queries whose counts are stored less one.
struct LookupTops {
  int count;
  int of_heads[kScoreHeads];
  uint16_t at[kScoreHeads * kLookupDim];  // word * 16 + byte * 4 + head
};

// Offset of a word of all keys in a tile.
template <typename Word>
__device__ __forceinline__ Word LookupRow(Word word) {
  return (word + (word >> 4)) * kLookupRowBytes;
}

// Asks for the count rows of the queries. Unit of 16 bytes c of a row is in place c ^ (word % 8).
__device__ __forceinline__ void CopyCountRows(const SplitArgs& args, const Stripes& b, const Queries& queries,
                                              uint32_t rows) {
  const int tid = static_cast<int>(threadIdx.x);
  constexpr int kUnits = kLookupLevels / 16;
  constexpr int kStep = kSplitResidentThreads / kUnits;  // rows
  constexpr int kPerHead = kLookupDim / kStep;
  constexpr int kCount = kScoreHeads * kPerHead;
  const int first = tid / kUnits;
  const int unit = tid % kUnits;
  const auto* codes = reinterpret_cast<const uint8_t*>(queries.words) + first;
  uint32_t level[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) level[i] = i / kPerHead < b.heads.count ? codes[i * kStep] & 0x7fu : 0u;
#pragma unroll
  for (int i = 0; i < kPerHead; ++i) {
    const int dim = first + i * kStep;
    const uint32_t to = rows + dim * kLookupLevels + (unit ^ (dim >> 2 & (kUnits - 1))) * 16;
    const uint8_t* from = args.qk.counts8 +
                          static_cast<uint32_t>(dim & (args.qk.masks - 1)) * (kLookupLevels * kLookupLevels) +
                          unit * 16;
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h)
      CopyAsync16(to + h * kLookupDim * kLookupLevels, from + level[h * kPerHead + i] * kLookupLevels,
                  h < b.heads.count);
  }
}

// Bytes i of four words as word i.
__device__ __forceinline__ void TransposeBytes(uint32_t (&w)[4]) {
  const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140);
  const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t high01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

// This lane's word of the codes of every query, with signs turned where more of a query's largest levels are positive.
struct LookupQueries {
  uint32_t codes[kScoreHeads];
  uint32_t turned;  // bit h

  __device__ __forceinline__ LookupQueries(const Stripes& b, const Queries& queries) : turned(0) {
    const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) codes[h] = h < b.heads.count ? queries.words[h * kLookupWords + lane] : 0;
  }
  __device__ __forceinline__ void Turn() {
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
      const auto count = [&](uint32_t code) { return __popc(__vcmpeq4(codes[h], code * 0x01010101u)); };
      const int more = count(kLookupLevels - 1) - count(0x80 | (kLookupLevels - 1));
      if (__reduce_add_sync(0xffffffffu, more) <= 0) continue;
      codes[h] ^= 0x80808080u;
      turned |= 1u << h;
    }
  }
};

// The table, [byte of a word][level][word], from the count rows.
__device__ __forceinline__ void FillCounts(const uint8_t* rows, const LookupQueries& q, uint32_t* table,
                                           LookupTops& tops) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  constexpr int kUnits = kLookupLevels / 16;
#pragma unroll 1
  for (int job = warp; job < 4 * kUnits; job += kResidentWarps) {
    const int j = job / kUnits;
    const int unit = job % kUnits;
    const uint8_t* row = rows + (lane * 4 + j) * kLookupLevels;
    const int place = lane & (kUnits - 1);
    uint4 counts[kScoreHeads];
    bool is_negative[kScoreHeads];
    bool is_less[kScoreHeads];
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
      const uint8_t* from = row + h * kLookupDim * kLookupLevels;
      counts[h] = *reinterpret_cast<const uint4*>(from + (unit ^ place) * 16);
      is_negative[h] = (q.codes[h] >> (8 * j) & 0x80) != 0;
      is_less[h] = !is_negative[h] && from[((kUnits - 1) ^ place) * 16 + 15] == 128;
      if (is_less[h] && unit == 0) {
        tops.at[atomicAdd(&tops.count, 1)] = static_cast<uint16_t>(lane * 16 + j * 4 + h);
        atomicAdd(&tops.of_heads[h], 1);
      }
    }
    uint32_t* to = table + (j * kLookupLevels + unit * 16) * kLookupWords + lane;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      uint32_t words[kScoreHeads];
#pragma unroll
      for (int h = 0; h < kScoreHeads; ++h) {
        const uint32_t word = x == 0 ? counts[h].x : x == 1 ? counts[h].y : x == 2 ? counts[h].z : counts[h].w;
        words[h] = is_negative[h] ? (0x80808080u - word) ^ 0x80808080u : word;
        if (is_less[h]) words[h] = __vsub4(word, 0x01010101u);
      }
      TransposeBytes(words);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(4 * x + i) * kLookupWords] = words[i];
    }
  }
}

// A warp's tile of keys: this lane's 16 bytes of eight words each on their way, and the scale of the key whose score it makes.
struct LookupKeys {
  TilePages<1> pages;
  int32_t page;           // of the next tile
  const uint32_t* words;  // the KV head's keys and scales in page 0
  const float* scales;
  int32_t page_scales;  // of all KV heads of a page
  uint4 k[kLookupWords / 8];
  float scale;

  // The key of a tile whose scores this lane makes, of heads Head() and the next.
  __device__ static int Key() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    return (lane >> 2 & 3) * 4 + (lane >> 4) * 2 + (lane >> 1 & 1);
  }
  __device__ static int Head() { return static_cast<int>(threadIdx.x & 1) * 2; }

  // Of a warp whose first tile is at local position `i`.
  __device__ __forceinline__ LookupKeys(const KvView& kv, const Stripes& b, int i)
      : pages(kv, b, i, kResidentWarps * kLookupTile),
        page(pages.Next(kv, b)),
        words(kv.k_words + kv.KWord(0, b.heads.kv_head, 0, 0)),
        scales(kv.k_scales + kv.Scale(0, b.heads.kv_head, 0)),
        page_scales(kv.num_kv_heads << kv.page_shift) {}
  // Asks for the next tile, at local position `i`, into registers.
  __device__ __forceinline__ void Load(const KvView& kv, const Stripes& b, int i) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int slot = SlotOf(kv, b, i);
    const uint32_t* from = Words(slot) + ((lane >> 2) << kv.page_shift) + (lane & 3) * 4;
#pragma unroll
    for (int n = 0; n < kLookupWords / 8; ++n)
      k[n] = __ldcg(reinterpret_cast<const uint4*>(from + (n * 8 << kv.page_shift)));
    scale = __ldcg(scales + static_cast<int64_t>(page) * page_scales + slot + Key());
    page = pages.Next(kv, b);
  }
  // Asks the L2 for the tile behind that, at local position `i`.
  __device__ __forceinline__ void Prefetch(const KvView& kv, const Stripes& b, int i) const {
    PrefetchL2Line(Words(SlotOf(kv, b, i)) + (static_cast<int>(threadIdx.x & 31) << kv.page_shift));
  }
  __device__ static int SlotOf(const KvView& kv, const Stripes& b, int i) {
    return min(b.Token(i), b.row.length - 1) & ~(kLookupTile - 1) & (kv.page_tokens - 1);
  }
  // The first words of positions from `slot` of the page on.
  __device__ __forceinline__ const uint32_t* Words(int slot) const {
    return words + static_cast<int64_t>(page) * (page_scales * kLookupWords) + slot;
  }
  // Into the warp's tile in shared memory.
  __device__ __forceinline__ void Store(uint8_t* tile) const {
    const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
    for (int n = 0; n < kLookupWords / 8; ++n) {
      const int word = (lane >> 2) + 8 * n;
      *reinterpret_cast<uint4*>(tile + LookupRow(word) + (lane & 3) * 16) = k[n];
    }
  }
};

// Where a lane finds its half of a key, 16 words from word `lane` on, wrapping: shared addresses of the table's columns and
// of the tile's words.
struct LookupPlaces {
  uint32_t columns[kLookupWords / 2];
  uint32_t words[kLookupWords / 2];
  uint32_t key;  // of the tile's first word

  __device__ __forceinline__ LookupPlaces(uint32_t table, uint32_t tile) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    key = tile + (lane & (kLookupTile - 1)) * 4;
#pragma unroll
    for (int i = 0; i < kLookupWords / 2; ++i) {
      const int word = (lane + i) & (kLookupWords - 1);
      columns[i] = table + word * 4;
      words[i] = key + LookupRow(word);
      // Kept: made again for every tile they would be a fourth of its instructions.
      asm volatile("" : "+r"(columns[i]), "+r"(words[i]));
    }
  }
};

// Ones of a head's byte for lanes 2 p and 2 p + 1 of a quad, of both halves of a step: pairs of registers.
struct LookupOnes {
  uint32_t of[2][2];

  __device__ __forceinline__ LookupOnes() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int column = lane >> 2;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      of[p][0] = (lane & 3) == p * 2 + column / 4 ? 1u << (8 * (column & 3)) : 0;
      of[p][1] = __shfl_sync(0xffffffffu, of[p][0], lane);  // or one register would be copied for every product
    }
  }
};

// The words of the table for the four codes of a word of a key, turned for negative ones.
template <int j = 0>
__device__ __forceinline__ void LookUpCounts(uint32_t levels, uint32_t codes, uint32_t column, uint32_t (&words)[4]) {
  constexpr uint32_t kStride = kLookupWords * 4;
  const uint32_t at = __dp4a(levels, kStride << (8 * j), column);
  uint32_t negative;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(negative) : "r"(codes), "n"(0x1111u * (8 + j)));
  words[j] = LoadSharedWord<j * kLookupLevels * kLookupWords * 4>(at) ^ negative;
  if constexpr (j + 1 < 4) LookUpCounts<j + 1>(levels, codes, column, words);
}

// Counts of a warp's tile: of key LookupKeys::Key() with heads Head() and the next.
__device__ __forceinline__ void CountTile(const LookupPlaces& places, const LookupTops& tops, int num_tops,
                                          const LookupOnes& ones, int32_t (&counts)[2]) {
  int32_t acc[2][4] = {};
  uint32_t negatives = 0;  // 128 for each
#pragma unroll
  for (int i = 0; i < kLookupWords / 2; ++i) {
    const uint32_t codes = LoadSharedWord(places.words[i]);
    uint32_t words[4];
    LookUpCounts(codes & 0x7f7f7f7fu, codes, places.columns[i], words);
    negatives = __dp4a(codes & 0x80808080u, 0x01010101u, negatives);
#pragma unroll
    for (int p = 0; p < 2; ++p) ByteMma32(acc[p], words[0], words[1], words[2], words[3], ones.of[p]);
  }
  const auto add = [&](uint32_t of_heads) {
#pragma unroll
    for (int p = 0; p < 2; ++p) ByteMma32(acc[p], of_heads, 0, 0, 0, ones.of[p]);
  };
  add((negatives >> 7) * 0x01010101u);
  // Less one is missing where the code is positive, and too much where it is negative: twice the positive ones, by each of
  // the key's two lanes once, less all of them.
#pragma unroll 1
  for (int i = 0; i < num_tops; ++i) {
    const uint32_t at = tops.at[i];
    const uint32_t codes = LoadSharedWord(places.key + LookupRow(at >> 4));
    add((~codes >> ((at >> 2 & 3) * 8 + 7) & 1) << (at & 3) * 8);
  }
  // Halves of keys are 16 lanes apart: this lane keeps one of its two pairs of keys, and gets the other lane's half of it.
  const bool second = (threadIdx.x & 16) != 0;
  int32_t sums[2][2];
#pragma unroll
  for (int p = 0; p < 2; ++p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) sums[p][h] = acc[p][h] + acc[p][h + 2];
  }
  const uint32_t low = static_cast<uint32_t>(second ? sums[0][0] : sums[1][0]);
  const uint32_t high = static_cast<uint32_t>(second ? sums[0][1] : sums[1][1]);
  const uint32_t other = __shfl_xor_sync(0xffffffffu, __byte_perm(low, high, 0x5410), 16);
  counts[0] = (second ? sums[1][0] : sums[0][0]) + static_cast<int16_t>(other & 0xffff);
  counts[1] = (second ? sums[1][1] : sums[0][1]) + (static_cast<int32_t>(other) >> 16);
}

}  // namespace stoch::cuda
