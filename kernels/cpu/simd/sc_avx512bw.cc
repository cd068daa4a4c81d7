// SPDX-License-Identifier: Apache-2.0
// SC products with AVX-512 without VBMI: by two look-ups, 64 rows at a time. Operators without such a table run the
// AVX2 shuffles.
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/simd/two_lookups.h"

namespace stoch::cpu::avx512 {
namespace {

// The instruction set of two_lookups.h.
struct Avx512Bw {
  using Bytes = __m512i;
  static constexpr int kRows = 64;
  struct Signs {  // +1 or -1, bytes of both dimensions in turns: those of the sums of `low` and of `high`
    Bytes first, second;
  };
  struct Sums {  // 16-bit sums, in the order of the unpack instructions
    Bytes low, high;
  };

  __attribute__((always_inline)) static inline Bytes Load(const uint8_t* at) { return _mm512_loadu_si512(at); }
  __attribute__((always_inline)) static inline void Store(uint8_t* at, Bytes v) { _mm512_storeu_si512(at, v); }
  __attribute__((always_inline)) static inline Bytes Zero() { return _mm512_setzero_si512(); }
  __attribute__((always_inline)) static inline Bytes Table(const uint8_t* at) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  __attribute__((always_inline)) static inline Bytes Look(Bytes table, Bytes index) {
    return _mm512_shuffle_epi8(table, index);
  }
  __attribute__((always_inline)) static inline Bytes And(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
  __attribute__((always_inline)) static inline Bytes Add(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
  __attribute__((always_inline)) static inline Bytes Low(Bytes v) { return And(v, _mm512_set1_epi8(0x0f)); }
  __attribute__((always_inline)) static inline Bytes Nibble(Bytes v) { return Low(_mm512_srli_epi16(v, 4)); }
  __attribute__((always_inline)) static inline Bytes Boundary(Bytes codes) {
    const Bytes level = And(codes, _mm512_set1_epi8(0x7f));
    return _mm512_mask_add_epi8(level, _mm512_test_epi8_mask(level, _mm512_set1_epi8(0x40)), level,
                                _mm512_set1_epi8(1));
  }
  __attribute__((always_inline)) static inline Bytes Average(Bytes a, Bytes b) {
    return _mm512_xor_si512(_mm512_avg_epu8(a, b), _mm512_set1_epi8(-1));
  }
  __attribute__((always_inline)) static inline Bytes High(Bytes codes) { return Low(_mm512_srli_epi16(codes, 3)); }
  __attribute__((always_inline)) static inline Bytes Mask(Bytes codes) {
    alignas(16) static constexpr uint8_t kMasks[16] = {0, 1, 3, 7, 15, 31, 63, 127, 0, 1, 3, 7, 15, 31, 63, 127};
    return Look(Table(kMasks), Low(codes));
  }
  __attribute__((always_inline)) static inline Bytes Ones(Bytes v) {
    alignas(16) static constexpr uint8_t kOnes[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    // An index whose bit 7 is not set counts by its low nibble.
    return Add(Look(Table(kOnes), v), Look(Table(kOnes), Low(_mm512_srli_epi16(v, 4))));
  }
  __attribute__((always_inline)) static inline Signs MakeSigns(Bytes codes0, Bytes codes1, uint8_t flip0,
                                                               uint8_t flip1) {
    const Bytes flips = _mm512_set1_epi16(static_cast<int16_t>(flip0 | flip1 << 8));
    const Bytes low = _mm512_unpacklo_epi8(codes0, codes1);
    const Bytes high = _mm512_unpackhi_epi8(codes0, codes1);
    return {_mm512_xor_si512(avx512::Signs(low), flips), _mm512_xor_si512(avx512::Signs(high), flips)};
  }
  __attribute__((always_inline)) static inline void AddPair(Sums& sums, Bytes counts0, Bytes counts1,
                                                            const Signs& signs) {
    const Bytes low = _mm512_unpacklo_epi8(counts0, counts1);
    const Bytes high = _mm512_unpackhi_epi8(counts0, counts1);
    sums.low = _mm512_add_epi16(sums.low, _mm512_maddubs_epi16(low, signs.first));
    sums.high = _mm512_add_epi16(sums.high, _mm512_maddubs_epi16(high, signs.second));
  }
  __attribute__((always_inline)) static inline void Widen(const Sums& sums, bool add, int32_t* acc) {
    avx512::Widen(sums.low, sums.high, add, acc);
  }
};

}  // namespace

void ScBlockBw(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
               const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  switch (table.form()) {
    case ScForm::kAverages:
      return TwoLookups<Avx512Bw, AverageForm<Avx512Bw>>::Block(table.averages, left, num_left, dims, blocks,
                                                                block_stride, num_blocks, acc);
    case ScForm::kStairs:
      return TwoLookups<Avx512Bw, StairForm<Avx512Bw>>::Block(table.stairs, left, num_left, dims, blocks, block_stride,
                                                              num_blocks, acc);
    case ScForm::kCounts:
    case ScForm::kBytes:
      return Avx2Simd().sc_block(table, left, num_left, first_dim, dims, blocks, block_stride, num_blocks, acc);
  }
}

}  // namespace stoch::cpu::avx512
