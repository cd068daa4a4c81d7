// SPDX-License-Identifier: Apache-2.0
// Codes of few bits as floats: FP8 (E4M3) times a scale, and 4 bits less a zero point, times a scale.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoch::quantized {

// The type that products are rounded to, to nearest even; kNone: F32, which they are made in.
enum class Rounding : uint8_t { kNone, kF16, kBf16 };

// out[i] = code i * scale. 0x7f and 0xff are NaN.
// Source: the OCP 8-bit floating point specification, E4M3; transformers' finegrained_fp8.py, compressed-tensors' forward.py.
void ScaleE4M3(const std::byte* codes, int64_t count, float scale, Rounding rounding, float* out);

// out[8 i + k] = F16((nibble k of words[i], from the lowest) - zero) * scale), one rounding. Requires: |zero| <= 16.
void ScaleWords(const uint32_t* words, int64_t count, int zero, float scale, float* out);
// Scales one nibble of each word, the one that begins at bit `shift`: out[i] is of words[i].
void ScaleNibbles(const uint32_t* words, int64_t count, int shift, int zero, float scale, float* out);
// Each element with a scale and a zero point of its own group: of scales[groups[8 i + k]], zeros[groups[8 i + k]].
void ScaleGrouped(const uint32_t* words, int64_t count, const int32_t* groups, const float* zeros, const float* scales,
                  float* out);

}  // namespace stoch::quantized
