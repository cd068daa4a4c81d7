// SPDX-License-Identifier: Apache-2.0
// Products of integers with NEON.
#include "kernels/cpu/simd/neon.h"

#include <arm_neon.h>

#include <cstring>

#include "kernels/cpu/simd/fixed/dots.h"

namespace stoch::cpu::neon {
namespace {

// Sixteen bits, as integers or as the bits of 32-bit sums.
struct NeonFixed {
  using Ints = int16x8_t;
  using Sums = int64x2_t;
  static constexpr int kElements = 8;
  static constexpr int64_t kAhead = 4096;
  static constexpr int kTokens = 3;
  static constexpr int kRows = 3;
  static constexpr int kStoredTokens = 2;
  static constexpr int StoredRows(int tokens) { return tokens == 1 ? 2 : 1; }

  static Ints Zero() { return vdupq_n_s16(0); }
  static Sums NoSums() { return vdupq_n_s64(0); }
  static Ints Load(const int16_t* from) { return vld1q_s16(from); }
  static void Store(int16_t* to, Ints ints) { vst1q_s16(to, ints); }
  // Each of the four sums takes the products of two lanes.
  static Ints MultiplyAdd(Ints acc, Ints a, Ints b) {
    int32x4_t sums = vreinterpretq_s32_s16(acc);
    sums = vmlal_s16(sums, vget_low_s16(a), vget_low_s16(b));
    return vreinterpretq_s16_s32(vmlal_high_s16(sums, a, b));
  }
  static Sums Widen(Sums sums, Ints low, Ints high) {
    sums = vpadalq_s32(sums, vreinterpretq_s32_s16(low));
    return vaddq_s64(sums, TimesDigit(vpaddlq_s32(vreinterpretq_s32_s16(high))));
  }
  static int64_t Total(Sums sums) { return vaddvq_s64(sums); }

  static Ints WidenBytes(const char* from) { return vmovl_s8(vld1_s8(reinterpret_cast<const int8_t*>(from))); }
  template <DType kType>
  static Ints Convert(const char* row, int64_t i, float scale) {
    uint16_t numbers[kElements];
    memcpy(numbers, row + i * 2, sizeof(numbers));
    const uint16x8_t stored = vld1q_u16(numbers);
    return vcombine_s16(Integers<kType>(vget_low_u16(stored), scale), Integers<kType>(vget_high_u16(stored), scale));
  }
  template <DType kType>
  static Ints ConvertRest(const char* row, int64_t i, int64_t count, float scale) {
    char numbers[kElements * 2] = {};
    memcpy(numbers, row + i * 2, static_cast<size_t>(count) * 2);
    return Convert<kType>(numbers, 0, scale);
  }

 private:
  static int64x2_t TimesDigit(int64x2_t sums) {
    static_assert(FixedLoops::kDigit == 1 << 12);
    return vshlq_n_s64(sums, 12);
  }
  template <DType kType>
  static int16x4_t Integers(uint16x4_t numbers, float scale) {
    float32x4_t values;
    if constexpr (kType == DType::kF16) {
      values = vcvt_f32_f16(vreinterpret_f16_u16(numbers));
    } else {
      values = vreinterpretq_f32_u32(vshll_n_u16(numbers, 16));
    }
    return vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(values, scale)));
  }
};

using Loops = FixedBy<NeonFixed>;

}  // namespace

constinit const FixedLoops kFixed = {Loops::Convert, Loops::Dots, Loops::Stored, 2};

}  // namespace stoch::cpu::neon
