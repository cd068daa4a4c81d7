// SPDX-License-Identifier: Apache-2.0
// SC products with NEON: by two look-ups of 16 entries where the operator has such a table, else of 64 entries
// each.
#include <arm_neon.h>

#include "kernels/cpu/simd/byte_table.h"
#include "kernels/cpu/simd/neon.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cpu::neon {
namespace {

// The instruction set of two_lookups.h.
struct Neon {
  using Bytes = uint8x16_t;
  static constexpr int kRows = 16;
  struct Signs {  // 0xff where the count of that dimension is taken off, else 0
    Bytes first, second;
  };
  struct Sums {  // 16-bit sums: all counts, and those that are taken off; rows 0..7 and 8..15
    uint16x8_t low, high, negative_low, negative_high;
  };

  static Bytes Load(const uint8_t* at) { return vld1q_u8(at); }
  static void Store(uint8_t* at, Bytes v) { vst1q_u8(at, v); }
  static Bytes Zero() { return vdupq_n_u8(0); }
  static Bytes Table(const uint8_t* at) { return vld1q_u8(at); }
  static Bytes Look(Bytes table, Bytes index) { return vqtbl1q_u8(table, index); }
  static Bytes And(Bytes a, Bytes b) { return vandq_u8(a, b); }
  static Bytes Add(Bytes a, Bytes b) { return vaddq_u8(a, b); }
  static Bytes Low(Bytes v) { return vandq_u8(v, vdupq_n_u8(0x0f)); }
  static Bytes Nibble(Bytes v) { return vshrq_n_u8(v, 4); }
  static Bytes Boundary(Bytes codes) {
    const Bytes level = vandq_u8(codes, vdupq_n_u8(0x7f));
    return vaddq_u8(level, vshrq_n_u8(level, 6));
  }
  static Bytes Average(Bytes a, Bytes b) { return vhaddq_u8(a, b); }
  static Bytes High(Bytes codes) { return vandq_u8(vshrq_n_u8(codes, 3), vdupq_n_u8(0x0f)); }
  static Bytes Mask(Bytes codes) {
    const int8x16_t shift = vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(0x07)));
    return vsubq_u8(vshlq_u8(vdupq_n_u8(1), shift), vdupq_n_u8(1));
  }
  static Bytes Ones(Bytes v) { return vcntq_u8(v); }
  static Bytes Negative(Bytes codes, uint8_t flip) {
    const Bytes sign = vreinterpretq_u8_s8(vshrq_n_s8(vreinterpretq_s8_u8(codes), 7));
    return veorq_u8(sign, vdupq_n_u8(flip != 0 ? 0xff : 0));
  }
  static Signs MakeSigns(Bytes codes0, Bytes codes1, uint8_t flip0, uint8_t flip1) {
    return {Negative(codes0, flip0), Negative(codes1, flip1)};
  }
  static void AddCounts(Sums& sums, Bytes counts, Bytes negative) {
    const Bytes taken = vandq_u8(counts, negative);
    sums.low = vaddw_u8(sums.low, vget_low_u8(counts));
    sums.high = vaddw_high_u8(sums.high, counts);
    sums.negative_low = vaddw_u8(sums.negative_low, vget_low_u8(taken));
    sums.negative_high = vaddw_high_u8(sums.negative_high, taken);
  }
  static void AddPair(Sums& sums, Bytes counts0, Bytes counts1, const Signs& signs) {
    AddCounts(sums, counts0, signs.first);
    AddCounts(sums, counts1, signs.second);
  }
  static void WidenHalf(uint16x8_t all, uint16x8_t negative, bool add, int32_t* acc) {
    // |all - 2 negative| is at most `all`, which kSegment keeps below 2^15.
    const int16x8_t sums = vreinterpretq_s16_u16(vsubq_u16(all, vaddq_u16(negative, negative)));
    int32x4_t low = vmovl_s16(vget_low_s16(sums));
    int32x4_t high = vmovl_high_s16(sums);
    if (add) {
      low = vaddq_s32(low, vld1q_s32(acc));
      high = vaddq_s32(high, vld1q_s32(acc + 4));
    }
    vst1q_s32(acc, low);
    vst1q_s32(acc + 4, high);
  }
  static void Widen(const Sums& sums, bool add, int32_t* acc) {
    WidenHalf(sums.low, sums.negative_low, add, acc);
    WidenHalf(sums.high, sums.negative_high, add, acc + 8);
  }
};

// The entries of a 128-byte row for 16 codes; bit 7 of a code is ignored.
uint8x16_t Lookup(const uint8x16x4_t& low, const uint8x16x4_t& high, uint8x16_t codes) {
  const uint8x16_t index = vandq_u8(codes, vdupq_n_u8(0x7f));
  // An index beyond 63 looks up 0.
  return vorrq_u8(vqtbl4q_u8(low, index), vqtbl4q_u8(high, veorq_u8(index, vdupq_n_u8(0x40))));
}

// The byte table of byte_table.h.
struct NeonBytes {
  // One left row against one block, dimensions [begin, begin + dims), dims <= kSegment.
  static void Segment(const uint8_t* bytes, const ScLeft& left, int64_t begin, int64_t dims, const uint8_t* block,
                      int32_t* acc) {
    constexpr int kParts = kBlockRows / Neon::kRows;
    Neon::Sums sums[kParts] = {};
    for (int64_t i = begin; i < begin + dims; ++i) {
      const uint8_t* row = bytes + left.offsets[i];
      const uint8x16x4_t low = vld1q_u8_x4(row);
      const uint8x16x4_t high = vld1q_u8_x4(row + 64);
      for (int p = 0; p < kParts; ++p) {
        const uint8x16_t codes = vld1q_u8(block + i * kBlockRows + p * Neon::kRows);
        Neon::AddCounts(sums[p], Lookup(low, high, codes), Neon::Negative(codes, left.flips[i]));
      }
    }
    for (int p = 0; p < kParts; ++p) Neon::Widen(sums[p], begin > 0, acc + p * Neon::kRows);
  }
};

}  // namespace

void ScBlock(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
             const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  ByteTable<Neon, NeonBytes>::Block(table, left, num_left, first_dim, dims, blocks, block_stride, num_blocks, acc);
}

void ScDequantize(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y) {
  for (int r = 0; r < kBlockRows; r += 4) {
    const float32x4_t sums = vcvtq_f32_s32(vld1q_s32(acc + r));
    const float32x4_t product = vmulq_f32(vmulq_n_f32(sums, gain), vmulq_n_f32(vld1q_f32(scale_b + r), scale_a));
    vst1q_f32(y + r, vaddq_f32(vld1q_f32(y + r), product));
  }
}

uint32_t MaxAbsBits(const float* x, int64_t n) {
  const uint32x4_t magnitude = vdupq_n_u32(0x7fffffffu);
  uint32x4_t lanes = vdupq_n_u32(0);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    lanes = vmaxq_u32(lanes, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), magnitude));
  }
  uint32_t max = vmaxvq_u32(lanes);
  for (; i < n; ++i) {
    const uint32_t bits = FloatToBits(x[i]) & 0x7fffffffu;
    max = bits > max ? bits : max;
  }
  return max;
}

void Quantize(const float* x, int64_t n, float scale, int q_max, uint8_t* codes) {
  const float32x4_t scales = vdupq_n_f32(scale);
  const float32x4_t limit = vdupq_n_f32(static_cast<float>(q_max));
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    int16x4_t halves[2];
    for (int h = 0; h < 2; ++h) {
      const float32x4_t level = vrndnq_f32(vdivq_f32(vld1q_f32(x + i + 4 * h), scales));
      halves[h] = vmovn_s32(vcvtq_s32_f32(vmaxq_f32(vminq_f32(level, limit), vnegq_f32(limit))));
    }
    const int16x8_t q = vcombine_s16(halves[0], halves[1]);
    const uint16x8_t sign = vandq_u16(vreinterpretq_u16_s16(vshrq_n_s16(q, 15)), vdupq_n_u16(0x80));
    vst1_u8(codes + i, vmovn_u16(vorrq_u16(vreinterpretq_u16_s16(vabsq_s16(q)), sign)));
  }
  for (; i < n; ++i) codes[i] = SignMagnitude(BipolarLevel(x[i], scale, q_max));
}

}  // namespace stoch::cpu::neon
