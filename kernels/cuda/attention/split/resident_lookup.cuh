// SPDX-License-Identifier: Apache-2.0
// q k by look-ups, of a block of the resident kernel and up to four query heads of 128 dimensions.
//
// The table has a word for every dimension and code of a key: the signed counts of the four heads, a byte each. Words of
// 32 neighbouring dimensions are next to each other, so lanes that look up in different ones of them, whatever the codes
// are, find them in 32 different banks. A lane takes words of keys as they lie in the cache, of four neighbouring keys each:
// eight lanes have the words of four keys, and lanes with the same words take their bytes in different orders. Byte MMAs
// with ones of a head's byte add the counts up: a row of a tile is four lanes, a column one of two keys and a head.
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
inline constexpr int kLookupColumns = 32;                         // of a part of the table
inline constexpr int kLookupParts = kLookupDim / kLookupColumns;  // of the dimensions
inline constexpr int kLookupPartWords = kLookupCodes * kLookupColumns;
inline constexpr int kLookupCountBytes = kScoreHeads * kLookupDim * kLookupLevels;  // of count rows in flight

// Dimensions of the queries whose count with the same code is 128.
struct LookupTops {
  static constexpr int kNegative = 0x80;  // with the dimension: the code is
  int count[kScoreHeads];
  uint8_t at[kScoreHeads][kLookupDim];
};

// A lane's part of a tile of keys: the words that it looks up and the scores that it makes.
struct LookupLane {
  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x & 31); }
  // Words Word(), Word() + 8, + 16 and + 24 of keys First() to First() + 3.
  __device__ __forceinline__ static int Half() { return Lane() >> 4; }
  __device__ __forceinline__ static int OfQuad() { return Lane() & 3; }
  __device__ __forceinline__ static int Word() { return Half() * 4 + OfQuad(); }
  __device__ __forceinline__ static int First() { return Lane() & 12; }
  // The key whose scores it makes, of heads Head() and the next.
  __device__ __forceinline__ static int Key() { return First() + OfQuad() / 2 * 2 + Half(); }
  __device__ __forceinline__ static int Head() { return Lane() % 2 * 2; }
};

__device__ __forceinline__ uint32_t WordOf(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Asks for the count rows of the queries. Unit of 16 bytes c of a row is in place c ^ (dimension % 8).
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
    const uint32_t to = rows + dim * kLookupLevels + (unit ^ (dim & (kUnits - 1))) * 16;
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

// Codes of every query that a lane makes parts of the table for: the bytes of dimensions that are lane more than multiples of
// 32, of two parts.
class LookupQueries {
 public:
  static constexpr int kUnits = kLookupLevels / 16;                     // of a count row
  static constexpr int kJobs = kLookupParts * kUnits / kResidentWarps;  // of a warp
  static constexpr int kPartStep = kResidentWarps / kUnits;             // between those
  static_assert(kJobs == 2);

  __device__ __forceinline__ LookupQueries(const Stripes& b, const Queries& queries) {
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
#pragma unroll
      for (int n = 0; n < kJobs; ++n) {
        const int word = h * kLookupWords + (Part(n) * kLookupColumns + LookupLane::Lane()) / 4;
        words_[h][n] = h < b.heads.count ? queries.words[word] : 0;
      }
    }
  }
  // The codes of the head, in byte n that of job n.
  __device__ __forceinline__ uint32_t Codes(int h) const {
    const uint32_t byte = LookupLane::Lane() & 3;
    return __byte_perm(words_[h][0], words_[h][1], byte | (4 + byte) << 4);
  }
  // The part of job n.
  __device__ __forceinline__ static int Part(int n) {
    return static_cast<int>(threadIdx.x >> 5) / kUnits + n * kPartStep;
  }

 private:
  uint32_t words_[kScoreHeads][kJobs];
};

// The table, [dimension / 32][code][dimension % 32], from the count rows.
__device__ __forceinline__ void FillCounts(const uint8_t* rows, const LookupQueries& q, uint32_t* table,
                                           LookupTops& tops) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  constexpr int kUnits = LookupQueries::kUnits;
  const int unit = static_cast<int>(threadIdx.x >> 5) % kUnits;
  uint32_t codes[kScoreHeads];
#pragma unroll
  for (int h = 0; h < kScoreHeads; ++h) codes[h] = q.Codes(h);
#pragma unroll 1
  for (int n = 0; n < LookupQueries::kJobs; ++n) {
    const int part = LookupQueries::Part(n);
    const int dim = part * kLookupColumns + lane;
    const uint8_t* row = rows + dim * kLookupLevels + (unit ^ (dim & (kUnits - 1))) * 16;
    uint4 counts[kScoreHeads];
    bool is_negative[kScoreHeads];
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
      counts[h] = *reinterpret_cast<const uint4*>(row + h * kLookupDim * kLookupLevels);
      is_negative[h] = (codes[h] >> (8 * n) & 0x80) != 0;
      if (unit == kUnits - 1 && counts[h].w >> 24 == 128)
        tops.at[h][atomicAdd(&tops.count[h], 1)] =
            static_cast<uint8_t>(dim | (is_negative[h] ? LookupTops::kNegative : 0));
    }
    uint32_t* to = table + part * kLookupPartWords + unit * 16 * kLookupColumns + lane;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      uint32_t same[kScoreHeads];  // counts with positive codes
      uint32_t other[kScoreHeads];
#pragma unroll
      for (int h = 0; h < kScoreHeads; ++h) {
        const uint32_t word = WordOf(counts[h], x);
        const uint32_t plus = word - (word >> 7 & 0x01010101u);
        const uint32_t minus = (0x80808080u - word) ^ 0x80808080u;
        same[h] = is_negative[h] ? minus : plus;
        other[h] = is_negative[h] ? plus : minus;
      }
      TransposeBytes(same);
      TransposeBytes(other);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[(4 * x + i) * kLookupColumns] = same[i];
        to[(kLookupLevels + 4 * x + i) * kLookupColumns] = other[i];
      }
    }
  }
}

// In scales of keys, from the KV head's in page 0 on; a tile of keys begins at kLookupWords times that of its first.
struct KeyPlace {
  __device__ static uint32_t Of(const KvView& kv, int32_t page, int slot) {
    return static_cast<uint32_t>(page) * (static_cast<uint32_t>(kv.num_kv_heads) << kv.page_shift) +
           static_cast<uint32_t>(slot);
  }
};

// A warp's tile of keys, and the scale of the key whose scores this lane makes.
struct LookupKeys {
  static constexpr int kAhead = 2;  // tiles that are prefetched into L2
  TilePlaces<1, KeyPlace> places;
  uint32_t ahead[kAhead];  // of those, the next tile's first
  const uint32_t* head;    // the KV head's keys in page 0
  const uint32_t* words;   // and what this lane reads of them, and of the scales
  const float* scales;
  uint4 k[kLookupParts];
  float scale;

  // For a warp whose first tile is at local position `i`.
  __device__ __forceinline__ LookupKeys(const KvView& kv, const Stripes& b, int i)
      : places(kv, b, i, kResidentWarps * kLookupTile) {
    head = kv.k_words + kv.KWord(0, b.heads.kv_head, 0, 0);
    words = head + kv.KeyWord(LookupLane::Word()) + kv.KeySlot(LookupLane::First());
    scales = kv.k_scales + kv.Scale(0, b.heads.kv_head, 0) + LookupLane::Key();
    // Kept, or they would be made again for every tile.
    asm volatile("" : "+l"(words), "+l"(scales));
    ahead[0] = places.Next();
  }
  // Loads the first tile, and prefetches those after it into L2: all of `tiles`. Nothing past the end is loaded, where every warp of
  // the row would want the same few lines at once.
  __device__ __forceinline__ void Begin(int tiles) {
    const uint32_t* from = From();
#pragma unroll
    for (int e = 0; e < kLookupParts; ++e) Load(from, e);
    LoadScale();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = places.Next();
      if (i + 1 < tiles) Prefetch(ahead[i]);
    }
  }
  // Where the next tile is.
  __device__ __forceinline__ const uint32_t* From() const { return words + Words(ahead[0]); }
  // Prefetches one more into L2, if so many are left after this one.
  __device__ __forceinline__ uint32_t Advance(int left) {
    const uint32_t last = places.Next();
    if (left > kAhead) Prefetch(last);
    return last;
  }
  // The next tile becomes this one; `last`: what Advance returned.
  __device__ __forceinline__ void Turn(uint32_t last) {
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) ahead[i] = ahead[i + 1];
    ahead[kAhead - 1] = last;
  }
  // volatile: the load is issued here, so that it is in flight before the next ones are needed.
  __device__ __forceinline__ void Load(const uint32_t* from, int e) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(k[e].x), "=r"(k[e].y), "=r"(k[e].z), "=r"(k[e].w)
                 : "l"(from + e * 8 * KvView::kTileKey));
  }
  __device__ __forceinline__ void LoadScale() { scale = __ldcg(scales + ahead[0]); }
  // Asks the L2 for the tile at `at`. One instruction of one lane: lines of a lane each would keep the path of loads busy
  // for as many clocks.
  __device__ __forceinline__ void Prefetch(uint32_t at) const {
    PrefetchL2OfWarp<kLookupTile * kLookupWords * 4>(head + Words(at));
  }

 private:
  // A place in words of keys.
  __device__ __forceinline__ static uint64_t Words(uint32_t at) { return uint64_t{at} * kLookupWords; }
};

// Where a lane looks up: in turn j the column of byte j ^ (a quarter of First()) of its words, in the table's first part.
struct LookupPlaces {
  uint32_t columns[4];
  uint32_t factors[4];  // of the codes of a word

  __device__ __forceinline__ explicit LookupPlaces(uint32_t table) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = i ^ (LookupLane::First() / 4);
      columns[i] = table + (LookupLane::Word() * 4 + j) * 4;
      factors[i] = kLookupColumns * 4u << (8 * j);
      asm volatile("" : "+r"(columns[i]), "+r"(factors[i]));  // kept
    }
  }
};

// A tile of sums has the heads of two of four neighbouring keys in its columns: keys i and i + 2 for tile i.
struct LookupColumn {
  __device__ __forceinline__ static int Head() { return LookupLane::Lane() / 4 % kScoreHeads; }
  __device__ __forceinline__ static int Pair() { return LookupLane::Lane() / 4 / kScoreHeads; }
};

// Ones of the byte of a head for the columns of the first of two keys, and of the second: pairs of registers.
struct LookupOnes {
  uint32_t of[2][2];

  __device__ __forceinline__ LookupOnes() {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      of[pair][0] = LookupColumn::Pair() == pair ? 1u << (8 * LookupColumn::Head()) : 0;
      // Or one register would be copied for every product.
      of[pair][1] = __shfl_sync(0xffffffffu, of[pair][0], LookupLane::Lane());
    }
  }
};

// Counts of four neighbouring keys: a lane's are of LookupLane's heads and of keys OfQuad() / 2 * 2 and the next, of each
// what is in elements 0 and 1 plus what is in 2 and 3, without what the lane half a warp apart has.
using LookupSums = int32_t[2][4];

// Counts that the table does not hold.
class LookupRest {
 public:
  // Behind the barrier of FillCounts.
  __device__ __forceinline__ explicit LookupRest(const LookupTops& tops) : tops_(tops), first_(tops, 0) {
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) most_ = max(most_, tops.count[h]);
  }
  // Counts of the keys `k` from 0 on: of all dimensions but the first of each head, whose codes AddPart finds.
  __device__ __forceinline__ void Begin(const uint4 (&k)[kLookupParts], LookupSums& sums, int32_t (&codes)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[0][i] = sums[1][i] = codes[i] = 0;
#pragma unroll 1
    for (int i = 1; i < most_; ++i) {
      const Sought sought(tops_, i);
      int32_t found[4] = {};
#pragma unroll
      for (int e = 0; e < kLookupParts; ++e) sought.Find(e, k[e], found);
      sought.Add(found, sums);
    }
  }
  __device__ __forceinline__ void AddPart(int e, const uint4& k, int32_t (&codes)[4]) const {
    first_.Find(e, k, codes);
  }
  __device__ __forceinline__ void End(const int32_t (&codes)[4], LookupSums& sums) const { first_.Add(codes, sums); }

 private:
  // One dimension for each head. Its codes are products of the keys' with a one for its byte: two keys in the columns, the
  // others in the rows of a tile.
  struct Sought {
    uint32_t ones[kLookupParts][2];
    int32_t code[2];  // of this lane's heads; none is kNone
    static constexpr int32_t kNone = 256;

    __device__ __forceinline__ Sought(const LookupTops& tops, int i) {
      const int of_column = LookupColumn::Head();
      const int dim = i < tops.count[of_column] ? tops.at[of_column][i] & (kLookupDim - 1) : -1;
      const uint32_t one = dim >= 0 && (dim >> 2 & 3) == LookupLane::OfQuad() ? 1u << (8 * (dim & 3)) : 0;
#pragma unroll
      for (int e = 0; e < kLookupParts; ++e) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          ones[e][pair] = LookupColumn::Pair() == pair && dim >> 5 == e ? one : 0;
          asm volatile("" : "+r"(ones[e][pair]));  // kept
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = LookupLane::Head() + h;
        const int at = tops.at[head][i];
        const bool is_here = i < tops.count[head] && (at >> 4 & 1) == LookupLane::Half();
        code[h] = !is_here ? kNone : (at & LookupTops::kNegative) != 0 ? -1 : kLookupLevels - 1;
        asm volatile("" : "+r"(code[h]));
      }
    }
    __device__ __forceinline__ void Find(int e, const uint4& k, int32_t (&codes)[4]) const {
      ByteMma32(codes, k.x, k.y, k.z, k.w, ones[e]);
    }
    __device__ __forceinline__ void Add(const int32_t (&codes)[4], LookupSums& sums) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i / 2][i % 2] += codes[i] == code[i % 2] ? 1 : 0;
    }
  };

  const LookupTops& tops_;
  Sought first_;
  int most_ = 0;
};

// Adds the counts of part e of the dimensions.
template <int e>
__device__ __forceinline__ void CountPart(const uint4& k, const LookupPlaces& places, const LookupOnes& ones,
                                          LookupSums& sums) {
  constexpr int kPart = e * kLookupPartWords * 4;
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      words[j] = LoadSharedWord<kPart>(__dp4a(WordOf(k, x), places.factors[j], places.columns[j]));
    ByteMma32(sums[x % 2], words[0], words[1], words[2], words[3], ones.of[x / 2]);
  }
}

// The counts of LookupLane::Key() with heads Head() and the next.
__device__ __forceinline__ void TakeCounts(const LookupSums& sums, int32_t (&counts)[2]) {
  // Lanes half a warp apart have halves of the words: each keeps one of its two keys, and gets the other lane's half of it.
  const bool second = LookupLane::Half() != 0;
  int32_t both[2][2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int h = 0; h < 2; ++h) both[u][h] = sums[u][h] + sums[u][h + 2];
  }
  const uint32_t low = static_cast<uint32_t>(second ? both[0][0] : both[1][0]);
  const uint32_t high = static_cast<uint32_t>(second ? both[0][1] : both[1][1]);
  const uint32_t other = __shfl_xor_sync(0xffffffffu, __byte_perm(low, high, 0x5410), 16);
  counts[0] = (second ? both[1][0] : both[0][0]) + static_cast<int16_t>(other & 0xffff);
  counts[1] = (second ? both[1][1] : both[0][1]) + (static_cast<int32_t>(other) >> 16);
}

}  // namespace stoch::cuda
