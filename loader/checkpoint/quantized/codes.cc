// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/quantized/codes.h"

#include "loader/vectors.h"

namespace stoch::quantized {
namespace {

using namespace vectors;  // NOLINT(google-build-using-namespace)

#define STOCH_INLINE __attribute__((always_inline)) inline

// Vectors are passed by reference: their own bits differ with AVX2 in how they are passed as values.
STOCH_INLINE void BitsOf(const Floats& x, Ints& bits) { std::memcpy(&bits, &x, sizeof(bits)); }
STOCH_INLINE void FloatsOf(const Ints& bits, Floats& x) { std::memcpy(&x, &bits, sizeof(x)); }

// F16ToFloat(FloatToF16(x)), with every way taken and one chosen.
STOCH_INLINE void RoundToF16(Floats& x) {
  Ints bits, subnormal;
  BitsOf(x, bits);
  const Ints magnitude = bits & 0x7fffffff;
  const Ints normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & ~0x1fff;
  Floats absolute;
  FloatsOf(magnitude, absolute);
  BitsOf((absolute + 0.5f) - 0.5f, subnormal);  // floats from 1/2 to 1 are 2^-24 apart
  const Ints large = magnitude > 0x7f800000 ? magnitude | 0x400000 : Ints{} + 0x7f800000;
  const Ints rounded = magnitude >= 0x477ff000 ? large : magnitude >= 0x38800000 ? normal : subnormal;
  FloatsOf(rounded | (bits & ~0x7fffffff), x);
}

STOCH_INLINE void RoundToBf16(Floats& x) {
  Ints bits;
  BitsOf(x, bits);
  const Ints magnitude = bits & 0x7fffffff;
  const Ints rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) & ~0xffff;
  FloatsOf((magnitude > 0x7f800000 ? magnitude | 0x400000 : rounded) | (bits & ~0x7fffffff), x);
}

STOCH_INLINE void Round(Rounding rounding, Floats& x) {
  switch (rounding) {
    case Rounding::kNone: return;
    case Rounding::kF16: return RoundToF16(x);
    case Rounding::kBf16: return RoundToBf16(x);
  }
}

// Sign, four bits of exponent from 2^-7 on, three of mantissa; below 2^-6 steps of 2^-9.
STOCH_INLINE void E4M3(const Bytes& codes, Floats& x) {
  const Ints code = __builtin_convertvector(codes, Ints);
  const Ints magnitude = code & 0x7f;
  Ints subnormal;
  BitsOf(__builtin_convertvector(magnitude, Floats) * 0.001953125f, subnormal);
  const Ints normal = (magnitude << 20) + (120 << 23);
  const Ints number = magnitude == 0x7f ? Ints{} + 0x7fc00000 : magnitude < 8 ? subnormal : normal;
  FloatsOf(number | (code & 0x80) << 24, x);
}

// put(i, n) for runs of eight, whose size compilers then know, and for the rest.
template <typename Put>
STOCH_INLINE void ForEachRun(int64_t count, const Put& put) {
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) put(i, kVector);
  if (i < count) put(i, count - i);
}

STOCH_INLINE void ScaleE4M3Here(const std::byte* codes, int64_t count, float scale, Rounding rounding, float* out) {
  ForEachRun(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        Bytes eight = {};
        std::memcpy(&eight, codes + i, static_cast<size_t>(n));
        Floats y;
        E4M3(eight, y);
        y *= scale;
        Round(rounding, y);
        std::memcpy(out + i, &y, static_cast<size_t>(n) * sizeof(float));
      });
}

// scale * (code - zero) of the codes that begin at these bits of the words.
STOCH_INLINE void PutNibbles(const Unsigned& words, const Unsigned& shifts, const Floats& zero, const Floats& scale,
                             Floats& y) {
  y = scale * (__builtin_convertvector(__builtin_convertvector(words >> shifts & 15u, Ints), Floats) - zero);
  RoundToF16(y);
}

constexpr Unsigned kShifts = {0, 4, 8, 12, 16, 20, 24, 28};

STOCH_INLINE void ScaleWordsHere(const uint32_t* words, int64_t count, float zero, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    Floats y;
    PutNibbles(Unsigned{} + words[i], kShifts, Floats{} + zero, Floats{} + scale, y);
    std::memcpy(out + i * kVector, &y, sizeof(y));
  }
}

STOCH_INLINE void ScaleNibblesHere(const uint32_t* words, int64_t count, uint32_t shift, float zero, float scale,
                                   float* out) {
  ForEachRun(
      count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
        Unsigned eight = {};
        std::memcpy(&eight, words + i, static_cast<size_t>(n) * sizeof(uint32_t));
        Floats y;
        PutNibbles(eight, Unsigned{} + shift, Floats{} + zero, Floats{} + scale, y);
        std::memcpy(out + i, &y, static_cast<size_t>(n) * sizeof(float));
      });
}

STOCH_INLINE void ScaleGroupedHere(const uint32_t* words, int64_t count, const int32_t* groups, const float* zeros,
                                   const float* scales, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    Floats zero, scale, y;
    for (int64_t k = 0; k < kVector; ++k) {
      zero[k] = zeros[groups[i * kVector + k]];
      scale[k] = scales[groups[i * kVector + k]];
    }
    PutNibbles(Unsigned{} + words[i], kShifts, zero, scale, y);
    std::memcpy(out + i * kVector, &y, sizeof(y));
  }
}

#if defined(__x86_64__)
// Compiles the functions above once more for AVX2; their bits do not change.
#define STOCH_AVX2 __attribute__((target("avx2"), flatten))

STOCH_AVX2 void ScaleE4M3Avx2(const std::byte* codes, int64_t count, float scale, Rounding rounding, float* out) {
  ScaleE4M3Here(codes, count, scale, rounding, out);
}
STOCH_AVX2 void ScaleWordsAvx2(const uint32_t* words, int64_t count, float zero, float scale, float* out) {
  ScaleWordsHere(words, count, zero, scale, out);
}
STOCH_AVX2 void ScaleNibblesAvx2(const uint32_t* words, int64_t count, uint32_t shift, float zero, float scale,
                                 float* out) {
  ScaleNibblesHere(words, count, shift, zero, scale, out);
}
STOCH_AVX2 void ScaleGroupedAvx2(const uint32_t* words, int64_t count, const int32_t* groups, const float* zeros,
                                 const float* scales, float* out) {
  ScaleGroupedHere(words, count, groups, zeros, scales, out);
}
#define STOCH_WIDEST(name) static const auto widest = __builtin_cpu_supports("avx2") != 0 ? name##Avx2 : name##Here
#else
#define STOCH_WIDEST(name) constexpr auto widest = name##Here
#endif

}  // namespace

void ScaleE4M3(const std::byte* codes, int64_t count, float scale, Rounding rounding, float* out) {
  STOCH_WIDEST(ScaleE4M3);
  widest(codes, count, scale, rounding, out);
}

void ScaleWords(const uint32_t* words, int64_t count, int zero, float scale, float* out) {
  STOCH_WIDEST(ScaleWords);
  widest(words, count, static_cast<float>(zero), scale, out);
}

void ScaleNibbles(const uint32_t* words, int64_t count, int shift, int zero, float scale, float* out) {
  STOCH_WIDEST(ScaleNibbles);
  widest(words, count, static_cast<uint32_t>(shift), static_cast<float>(zero), scale, out);
}

void ScaleGrouped(const uint32_t* words, int64_t count, const int32_t* groups, const float* zeros, const float* scales,
                  float* out) {
  STOCH_WIDEST(ScaleGrouped);
  widest(words, count, groups, zeros, scales, out);
}

}  // namespace stoch::quantized
