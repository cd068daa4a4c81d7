// SPDX-License-Identifier: Apache-2.0
// q k by look-ups, of a block of the resident kernel and up to four query heads of 128 dimensions.
//
// The table has a word for every dimension and code of a key: the signed counts of the four heads, a byte each. Words of
// the 32 words of a key are next to each other, so lanes that look up in 32 different words of keys, whatever their codes
// are, find them in 32 different banks. A lane therefore takes half of a key, and begins where no other lane of its warp
// does. Byte MMAs with ones of a head's byte add the words up: a row of a tile is four lanes, a column one of two lanes and
// a head.
//
// A byte does not hold 128, the count of two largest levels of the same sign under 128 cycles: 127 is in its place, and
// what is missing is found in the keys' codes there, mostly one for each head.
#pragma once

#include "kernels/cuda/attention/split/resident_pages.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

inline constexpr int kLookupDim = 128;
inline constexpr int kLookupWords = kLookupDim / 4;  // of a key
inline constexpr int kLookupLevels = 128;
inline constexpr int kLookupCodes = 2 * kLookupLevels;
inline constexpr int kLookupTile = kSplitLookupTile;  // keys of a warp at a time
inline constexpr int kLookupTableBytes = kLookupDim * kLookupCodes * 4;
inline constexpr int kLookupRowBytes = kLookupTile * 4;  // of a word of all keys of a tile
// A row more in the middle: the second half of the words is in the other half of the banks.
inline constexpr int kLookupTileBytes = (kLookupWords + 1) * kLookupRowBytes;
inline constexpr int kLookupCountBytes = kScoreHeads * kLookupDim * kLookupLevels;  // of count rows on their way

// Dimensions of the queries whose count with the same code is 128.
struct LookupTops {
  static constexpr int kNegative = 0x8000;
  int count[kScoreHeads];
  uint16_t at[kScoreHeads][kLookupDim];  // offset of key 0's code in a tile, with kNegative if the code is
};

// Offset of a word of all keys in a tile.
__host__ __device__ constexpr int LookupRow(int word) { return (word + (word >> 4)) * kLookupRowBytes; }

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

// This lane's word of the codes of every query.
struct LookupQueries {
  uint32_t codes[kScoreHeads];

  __device__ __forceinline__ LookupQueries(const Stripes& b, const Queries& queries) {
    const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) codes[h] = h < b.heads.count ? queries.words[h * kLookupWords + lane] : 0;
  }
};

// The table, [byte of a word][code][word], from the count rows.
__device__ __forceinline__ void FillCounts(const uint8_t* rows, const LookupQueries& q, uint32_t* table,
                                           LookupTops& tops) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  constexpr int kUnits = kLookupLevels / 16;
#pragma unroll 1
  for (int job = warp; job < 4 * kUnits; job += kResidentWarps) {
    const int j = job / kUnits;
    const int unit = job % kUnits;
    const uint8_t* row = rows + (lane * 4 + j) * kLookupLevels + (unit ^ (lane & (kUnits - 1))) * 16;
    uint4 counts[kScoreHeads];
    bool is_negative[kScoreHeads];
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
      counts[h] = *reinterpret_cast<const uint4*>(row + h * kLookupDim * kLookupLevels);
      is_negative[h] = (q.codes[h] >> (8 * j) & 0x80) != 0;
      if (unit == kUnits - 1 && counts[h].w >> 24 == 128)
        tops.at[h][atomicAdd(&tops.count[h], 1)] =
            static_cast<uint16_t>((LookupRow(lane) + j) | (is_negative[h] ? LookupTops::kNegative : 0));
    }
    uint32_t* to = table + (j * kLookupCodes + unit * 16) * kLookupWords + lane;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      uint32_t same[kScoreHeads];  // counts with positive codes
      uint32_t other[kScoreHeads];
#pragma unroll
      for (int h = 0; h < kScoreHeads; ++h) {
        const uint32_t word = x == 0 ? counts[h].x : x == 1 ? counts[h].y : x == 2 ? counts[h].z : counts[h].w;
        const uint32_t plus = word - (word >> 7 & 0x01010101u);
        const uint32_t minus = (0x80808080u - word) ^ 0x80808080u;
        same[h] = is_negative[h] ? minus : plus;
        other[h] = is_negative[h] ? plus : minus;
      }
      TransposeBytes(same);
      TransposeBytes(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[(4 * x + i) * kLookupWords] = same[i];
        to[(kLookupLevels + 4 * x + i) * kLookupWords] = other[i];
      }
    }
  }
}

// In scales of keys, from the KV head's in page 0 on.
struct KeyPlace {
  __device__ static uint32_t Of(const KvView& kv, int32_t page, int slot) {
    return static_cast<uint32_t>(page) * (static_cast<uint32_t>(kv.num_kv_heads) << kv.page_shift) +
           static_cast<uint32_t>(slot);
  }
};

// A warp's tile of keys: this lane's 16 bytes of eight words each on their way, and the scale of the key whose score it makes.
struct LookupKeys {
  TilePlaces<1, KeyPlace> places;
  uint32_t place;         // of the next tile
  const uint32_t* words;  // what this lane reads of the KV head's keys and scales in page 0, or asks the L2 for
  const uint32_t* line;
  const float* scales;
  uint32_t stride;  // of eight words of keys
  uint32_t to;      // what this lane writes of the warp's tile in shared memory
  uint4 k[kLookupWords / 8];
  float scale;

  // The key of a tile whose scores this lane makes, of heads Head() and the next.
  __device__ static int Key() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    return (lane >> 2 & 3) * 4 + (lane >> 4) * 2 + (lane >> 1 & 1);
  }
  __device__ static int Head() { return static_cast<int>(threadIdx.x & 1) * 2; }

  // Of a warp whose first tile is at local position `i`, and has `tile` of shared memory for each in turn.
  __device__ __forceinline__ LookupKeys(const KvView& kv, const Stripes& b, int i, uint32_t tile)
      : places(kv, b, i, kResidentWarps * kLookupTile), place(places.Next()) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const uint32_t* head = kv.k_words + kv.KWord(0, b.heads.kv_head, 0, 0);
    words = head + ((lane >> 2) << kv.page_shift) + (lane & 3) * 4;
    line = head + (lane << kv.page_shift);
    scales = kv.k_scales + kv.Scale(0, b.heads.kv_head, 0) + Key();
    stride = 8u << kv.page_shift;
    to = tile + LookupRow(lane >> 2) + (lane & 3) * 16;
    // Kept, or they would be made again for every tile.
    asm volatile("" : "+l"(words), "+l"(line), "+l"(scales), "+r"(stride), "+r"(to));
  }
  // Asks for the next tile into registers. `behind`: the place of the one behind it.
  __device__ __forceinline__ void Load(const KvView& kv, uint32_t behind) {
    const uint32_t* from = words + Words(kv, place);
#pragma unroll
    for (uint64_t n = 0; n < kLookupWords / 8; ++n) k[n] = __ldcg(reinterpret_cast<const uint4*>(from + n * stride));
    scale = __ldcg(scales + place);
    place = behind;
  }
  // Asks the L2 for the tile at `at`.
  __device__ __forceinline__ void Prefetch(const KvView& kv, uint32_t at) const {
    PrefetchL2Line(line + Words(kv, at));
  }
  // A place in words of keys.
  __device__ __forceinline__ static uint64_t Words(const KvView& kv, uint32_t at) {
    const auto slots = static_cast<uint32_t>(kv.page_tokens - 1);
    return uint64_t{(at & ~slots) * (kLookupWords / 4) + (at & slots) / 4} * 4;
  }
  // Into the warp's tile.
  __device__ __forceinline__ void Store() const { StoreWords(); }

 private:
  template <int n = 0>
  __device__ __forceinline__ void StoreWords() const {
    StoreShared16<LookupRow(8 * n)>(to, k[n]);
    if constexpr (n + 1 < kLookupWords / 8) StoreWords<n + 1>();
  }
};

// Where a lane finds its half of a key, 16 words from word `lane` on, wrapping: shared addresses of the table's columns and
// of the tile's words.
struct LookupPlaces {
  uint32_t columns[kLookupWords / 2];
  uint32_t words[kLookupWords / 2];

  __device__ __forceinline__ LookupPlaces(uint32_t table, uint32_t tile) {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const uint32_t key = tile + (lane & (kLookupTile - 1)) * 4;
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

// The words of the table for the four codes of a word of a key.
template <int j = 0>
__device__ __forceinline__ void LookUpCounts(uint32_t codes, uint32_t column, uint32_t (&words)[4]) {
  constexpr uint32_t kStride = kLookupWords * 4;
  words[j] = LoadSharedWord<j * kLookupCodes * kLookupWords * 4>(__dp4a(codes, kStride << (8 * j), column));
  if constexpr (j + 1 < 4) LookUpCounts<j + 1>(codes, column, words);
}

// What the table lacks of the counts of key LookupKeys::Key() with heads Head() and the next.
class LookupRest {
 public:
  // Behind the barrier of FillCounts.
  __device__ __forceinline__ LookupRest(const LookupTops& tops, uint32_t tile)
      : tops_(tops), key_(tile + LookupKeys::Key() * 4) {
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) most_ = max(most_, tops.count[h]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = LookupKeys::Head() + h;
      count_[h] = tops.count[head];
      first_[h] = Of(tops.at[head][0]);
      if (count_[h] == 0) first_[h] = {key_, 256};
      asm volatile("" : "+r"(first_[h].at), "+r"(first_[h].code));  // kept
    }
  }
  __device__ __forceinline__ void Add(int32_t (&counts)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) counts[h] += first_[h].Here();
#pragma unroll 1
    for (int i = 1; i < most_; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (i < count_[h]) counts[h] += Of(tops_.at[LookupKeys::Head() + h][i]).Here();
    }
  }

 private:
  struct Code {
    uint32_t at;
    uint32_t code;
    __device__ __forceinline__ int32_t Here() const { return LoadSharedByte(at) == code ? 1 : 0; }
  };
  __device__ __forceinline__ Code Of(uint32_t entry) const {
    return {key_ + (entry & ~LookupTops::kNegative), (kLookupLevels - 1) | (entry & LookupTops::kNegative) >> 8};
  }

  const LookupTops& tops_;
  uint32_t key_;  // of the tile's first code of the key
  int most_ = 0;
  int count_[2];
  Code first_[2];
};

// Counts of a warp's tile: of key LookupKeys::Key() with heads Head() and the next.
__device__ __forceinline__ void CountTile(const LookupPlaces& places, const LookupRest& rest, const LookupOnes& ones,
                                          int32_t (&counts)[2]) {
  int32_t acc[2][4] = {};
#pragma unroll
  for (int i = 0; i < kLookupWords / 2; ++i) {
    uint32_t words[4];
    LookUpCounts(LoadSharedWord(places.words[i]), places.columns[i], words);
#pragma unroll
    for (int p = 0; p < 2; ++p) ByteMma32(acc[p], words[0], words[1], words[2], words[3], ones.of[p]);
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
  rest.Add(counts);
}

}  // namespace stoch::cuda
