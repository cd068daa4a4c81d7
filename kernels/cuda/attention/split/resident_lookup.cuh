// SPDX-License-Identifier: Apache-2.0
// q k by table look-ups, for the resident look-up kernel (resident_lookup.cu) and up to four query heads of 128
// dimensions.
//
// The table has a word for every dimension and every code of a key: the signed counts of the four heads, a byte each.
// Words of 32 neighbouring dimensions are next to each other, so lanes that look up 32 different dimensions use 32
// different banks, whatever the codes are. A lane takes words of keys as they lie in the cache (four dimensions each),
// of four neighbouring keys. Eight lanes have eight different words of the same four keys; the four lanes with one word
// index but different keys take the bytes in different orders, so the 32 lanes always look up 32 different dimensions.
// Byte MMAs, whose operand B has ones at the byte of a head, add the counts up: a row of a tile sums over four lanes, a
// column is one of two keys and a head.
//
// A byte cannot hold 128, the count of two largest levels of equal sign under 128 cycles. The table has 127 instead,
// and LookupRest adds the missing 1 for keys that have the largest level in such a dimension. A head mostly has one
// such dimension.
#pragma once

#include "kernels/cuda/attention/split/resident_pages.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {

inline constexpr int kLookupDim = 128;
inline constexpr int kLookupWords = kLookupDim / 4;  // 32-bit words that hold the codes of a key
inline constexpr int kLookupLevels = 128;
inline constexpr int kLookupCodes = 2 * kLookupLevels;
inline constexpr int kLookupTile = kSplitLookupTile;  // keys that a warp takes at a time
inline constexpr int kLookupTableBytes = kLookupDim * kLookupCodes * 4;
inline constexpr int kLookupColumns = 32;  // dimensions of a part of the table
// parts of the table, each for kLookupColumns dimensions
inline constexpr int kLookupParts = kLookupDim / kLookupColumns;
inline constexpr int kLookupPartWords = kLookupCodes * kLookupColumns;
// bytes of the count rows that CopyCountRows copies
inline constexpr int kLookupCountBytes = kScoreHeads * kLookupDim * kLookupLevels;

// Lists, for each head, the dimensions in which the query has the largest level and the count with a key of the largest
// level is 128, which a signed byte of the table cannot hold.
struct LookupTops {
  // Bit 7 of an element of `at`: the query's code is negative. Bits 0 to 6 are the dimension.
  static constexpr int kNegative = 0x80;
  int count[kScoreHeads];
  uint8_t at[kScoreHeads][kLookupDim];
};

// A lane's share of a tile of 16 keys: the words of codes that it looks up, and the scores that it computes.
struct LookupLane {
  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x & 31); }
  // The lane looks up words Word(), Word() + 8, Word() + 16 and Word() + 24 (four dimensions each) of keys First() to
  // First() + 3 of the tile.
  __device__ __forceinline__ static int Half() { return Lane() >> 4; }
  __device__ __forceinline__ static int OfQuad() { return Lane() & 3; }
  __device__ __forceinline__ static int Word() { return Half() * 4 + OfQuad(); }
  __device__ __forceinline__ static int First() { return Lane() & 12; }
  // The lane computes the scores of key Key() with query heads Head() and Head() + 1.
  __device__ __forceinline__ static int Key() { return First() + OfQuad() / 2 * 2 + Half(); }
  __device__ __forceinline__ static int Head() { return Lane() % 2 * 2; }
};

__device__ __forceinline__ uint32_t WordOf(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Issues asynchronous copies of the count rows of the queries to shared address `rows`, [head][dimension][level of a
// key]. A count row is the row of counts8 for the query's level in a dimension. Against bank conflicts, 16-byte piece c
// of a row is at place c ^ (dimension % 8). Called by all threads; the caller commits the copies and waits for them.
__device__ __forceinline__ void CopyCountRows(const SplitArgs& args, const Stripes& b, const Queries& queries,
                                              uint32_t rows) {
  const int tid = static_cast<int>(threadIdx.x);
  constexpr int kUnits = kLookupLevels / 16;
  constexpr int kStep = kSplitResidentThreads / kUnits;  // rows that the block copies at a time
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

// Transposes a 4 x 4 matrix of bytes: byte i of word k becomes byte k of word i.
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

// The query codes from which a lane makes its share of the table. A warp has kJobs jobs; a job makes 16 levels of one
// part (32 dimensions) of the table, lane l its dimension l.
class LookupQueries {
 public:
  static constexpr int kUnits = kLookupLevels / 16;                     // pieces of 16 levels in a count row
  static constexpr int kJobs = kLookupParts * kUnits / kResidentWarps;  // jobs of a warp
  static constexpr int kPartStep = kResidentWarps / kUnits;             // parts between two jobs of a warp
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
  // Returns head h's codes in the lane's dimensions: byte n is for job n.
  __device__ __forceinline__ uint32_t Codes(int h) const {
    const uint32_t byte = LookupLane::Lane() & 3;
    return __byte_perm(words_[h][0], words_[h][1], byte | (4 + byte) << 4);
  }
  // Returns the part of the table (32 dimensions) that this warp's job n makes.
  __device__ __forceinline__ static int Part(int n) {
    return static_cast<int>(threadIdx.x >> 5) / kUnits + n * kPartStep;
  }

 private:
  uint32_t words_[kScoreHeads][kJobs];
};

// Fills the table in shared memory, [dimension / 32][code of a key][dimension % 32] with a byte per head, from the
// count rows, and lists counts of 128 in `tops`, whose count is 0 before. Called by all threads, between two barriers
// of the caller.
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
      // Counts of four levels with a key's code that is positive (same) and negative (other); after the transposition
      // word i has level i, a byte per head.
      uint32_t same[kScoreHeads];
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

// A tile of keys is located by one number, its place: the offset of its scales in k_scales from the KV head's first
// scale in page 0. Its words of codes begin at kLookupWords times this offset.
struct KeyPlace {
  __device__ static uint32_t Of(const KvView& kv, int32_t page, int slot) {
    return static_cast<uint32_t>(page) * (static_cast<uint32_t>(kv.num_kv_heads) << kv.page_shift) +
           static_cast<uint32_t>(slot);
  }
};

// A warp's iteration over its tiles of keys: the current tile's words and scale in registers, and the places of the
// next tiles.
struct LookupKeys {
  static constexpr int kAhead = 2;  // tiles after the current one that are prefetched into L2
  TilePlaces<1, KeyPlace> places;
  uint32_t ahead[kAhead];  // [kAhead] places of the next tiles, nearest first
  const uint32_t* head;    // address of the KV head's first key word in page 0
  // Addresses for a tile at the start of page 0: this lane's first word of codes, and the scale of the key whose scores
  // the lane computes.
  const uint32_t* words;
  const float* scales;
  uint4 k[kLookupParts];
  float scale;

  // Starts at the warp's first tile, at local position `i`; loads nothing yet.
  __device__ __forceinline__ LookupKeys(const KvView& kv, const Stripes& b, int i)
      : places(kv, b, i, kResidentWarps * kLookupTile) {
    head = kv.k_words + kv.KWord(0, b.heads.kv_head, 0, 0);
    words = head + kv.KeyWord(LookupLane::Word()) + kv.KeySlot(LookupLane::First());
    scales = kv.k_scales + kv.Scale(0, b.heads.kv_head, 0) + LookupLane::Key();
    // Kept in registers; otherwise the compiler would compute the addresses again for every tile.
    asm volatile("" : "+l"(words), "+l"(scales));
    ahead[0] = places.Next();
  }
  // Loads the first tile, and prefetches up to kAhead following tiles into L2. tiles: number of tiles of the warp.
  // Nothing past the last tile is prefetched, since all warps of the row would fetch the same few lines at once.
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
  // Returns the address of this lane's first word of the next tile.
  __device__ __forceinline__ const uint32_t* From() const { return words + Words(ahead[0]); }
  // Returns the place of the tile kAhead + 1 tiles ahead, and prefetches it into L2 if more than kAhead tiles are left.
  __device__ __forceinline__ uint32_t Advance(int left) {
    const uint32_t last = places.Next();
    if (left > kAhead) Prefetch(last);
    return last;
  }
  // Makes the next tile the current one. last: the place that Advance returned.
  __device__ __forceinline__ void Turn(uint32_t last) {
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) ahead[i] = ahead[i + 1];
    ahead[kAhead - 1] = last;
  }
  // Loads part e of a tile. volatile: the load is issued here, so that it is in flight before its words are needed.
  __device__ __forceinline__ void Load(const uint32_t* from, int e) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(k[e].x), "=r"(k[e].y), "=r"(k[e].z), "=r"(k[e].w)
                 : "l"(from + e * 8 * KvView::kTileKey));
  }
  __device__ __forceinline__ void LoadScale() { scale = __ldcg(scales + ahead[0]); }
  // Prefetches the tile at place `at` into L2. GPUs with bulk prefetch take one instruction of one lane; a prefetch of
  // a line by every lane would occupy the load path for many clocks.
  __device__ __forceinline__ void Prefetch(uint32_t at) const {
    PrefetchL2OfWarp<kLookupTile * kLookupWords * 4>(head + Words(at));
  }

 private:
  // Converts the place of a tile to an offset in words of codes.
  __device__ __forceinline__ static uint64_t Words(uint32_t at) { return uint64_t{at} * kLookupWords; }
};

// Shared-memory addresses of a lane's look-ups in the first part of the table. In turn i the lane looks up byte j = i ^
// (First() / 4) of its words: columns[i] is the address of code 0 in that byte's dimension, factors[i] is a dp4a
// operand that turns a word of codes into the offset of byte j's code.
struct LookupPlaces {
  uint32_t columns[4];
  uint32_t factors[4];

  __device__ __forceinline__ explicit LookupPlaces(uint32_t table) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = i ^ (LookupLane::First() / 4);
      columns[i] = table + (LookupLane::Word() * 4 + j) * 4;
      factors[i] = kLookupColumns * 4u << (8 * j);
      asm volatile("" : "+r"(columns[i]), "+r"(factors[i]));  // keeps the values in registers
    }
  }
};

// This lane's column in operand B of CountPart. In tile i of LookupSums, the column adds counts of head Head() with key
// i (Pair() = 0) or i + 2 (Pair() = 1) of four neighbouring keys.
struct LookupColumn {
  __device__ __forceinline__ static int Head() { return LookupLane::Lane() / 4 % kScoreHeads; }
  __device__ __forceinline__ static int Pair() { return LookupLane::Lane() / 4 / kScoreHeads; }
};

// Operands B of CountPart: `of[pair]` has a one at the byte of the column's head if the column is of that pair, else 0,
// in two equal registers.
struct LookupOnes {
  uint32_t of[2][2];

  __device__ __forceinline__ LookupOnes() {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      of[pair][0] = LookupColumn::Pair() == pair ? 1u << (8 * LookupColumn::Head()) : 0;
      // Made by a shuffle: with one register for both, the compiler would copy it for every MMA.
      of[pair][1] = __shfl_sync(0xffffffffu, of[pair][0], LookupLane::Lane());
    }
  }
};

// Accumulators of the counts of four neighbouring keys. In tile i a lane has key OfQuad() / 2 * 2 + i: the count with
// head Head() + h is element h plus element h + 2, plus the same two elements of lane ^ 16, which has the other half of
// the dimensions.
using LookupSums = int32_t[2][4];

// Adds what the table lacks: 1 for every key with the largest level in a dimension of LookupTops, if the key's code has
// the query's sign there.
class LookupRest {
 public:
  // Requires: a barrier between FillCounts and this.
  __device__ __forceinline__ explicit LookupRest(const LookupTops& tops) : tops_(tops), first_(tops, 0) {
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) most_ = max(most_, tops.count[h]);
  }
  // Zeroes `sums` and `codes`, then adds the missing counts of keys `k` in all listed dimensions except the first of
  // each head, which AddPart and End add.
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
  // One listed dimension of each head. Byte MMAs extract the keys' codes in it: operand A has the keys' words, operand
  // B a one at the dimension's byte. Columns are (pair of keys, head), and the keys of a pair are in rows i and i + 8.
  struct Sought {
    uint32_t ones[kLookupParts][2];
    // [2] code, as a signed byte, that is looked for in each of this lane's two heads; kNone if the head's dimension is
    // not in the words of this lane's quad.
    int32_t code[2];
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
          asm volatile("" : "+r"(ones[e][pair]));  // keeps the ones in registers
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

// Adds the counts of part e (32 dimensions) of four neighbouring keys to `sums`, by look-ups. Called by all lanes of a
// warp.
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

// Sets counts[h] to the count of key LookupLane::Key() with query head Head() + h, for h = 0 and 1. Called by all
// lanes.
__device__ __forceinline__ void TakeCounts(const LookupSums& sums, int32_t (&counts)[2]) {
  // Lanes half a warp apart have different halves of the dimensions. Each lane keeps one of its two keys, and adds the
  // other lane's counts of that key.
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
