// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF tensors as floats.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>

#include "kernels/math/half.h"
#include "loader/checkpoint/gguf/types.h"
#include "loader/vectors.h"

namespace stoch::gguf {
namespace {

using namespace vectors;  // NOLINT(google-build-using-namespace)

uint8_t ByteAt(const std::byte* at) { return static_cast<uint8_t>(*at); }
int8_t SignedAt(const std::byte* at) { return static_cast<int8_t>(*at); }

float HalfAt(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return F16ToFloat(bits);
}

// scale * (code - zero)
__attribute__((always_inline)) inline void Put(Bytes codes, int zero, float scale, float* out) {
  const Floats y = scale * __builtin_convertvector(__builtin_convertvector(codes, Ints) - zero, Floats);
  std::memcpy(out, &y, sizeof(y));
}

// scale * code + offset
__attribute__((always_inline)) inline void PutMoved(Bytes codes, float scale, float offset, float* out) {
  const Floats y = scale * __builtin_convertvector(__builtin_convertvector(codes, Ints), Floats) + offset;
  std::memcpy(out, &y, sizeof(y));
}

// 16 where a bit is set: the fifth bits of eight elements.
__attribute__((always_inline)) inline Bytes FifthBits(const std::byte* at) {
  constexpr Bytes kBits = {1, 2, 4, 8, 16, 32, 64, 128};
  return ((kBits & ByteAt(at)) != 0) & 16;
}

// Types of 32 elements: a scale, for some an offset, then codes. The first 16 elements are the low nibbles.
void DecodeQ8_0(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(SignedAt(block + 2 + i));
}

void DecodeQ4_0(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  for (int64_t i = 0; i < 16; i += kVector) {
    const Bytes codes = BytesAt(block + 2 + i);
    Put(codes & 15, 8, scale, out + i);
    Put(codes >> 4, 8, scale, out + i + 16);
  }
}

void DecodeQ4_1(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const float offset = HalfAt(block + 2);
  for (int64_t i = 0; i < 16; i += kVector) {
    const Bytes codes = BytesAt(block + 4 + i);
    PutMoved(codes & 15, scale, offset, out + i);
    PutMoved(codes >> 4, scale, offset, out + i + 16);
  }
}

void DecodeQ5_0(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const std::byte* fifth = block + 2;
  for (int64_t i = 0; i < 16; i += kVector) {
    const Bytes codes = BytesAt(block + 6 + i);
    Put((codes & 15) | FifthBits(fifth + i / 8), 16, scale, out + i);
    Put((codes >> 4) | FifthBits(fifth + i / 8 + 2), 16, scale, out + i + 16);
  }
}

void DecodeQ5_1(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const float offset = HalfAt(block + 2);
  const std::byte* fifth = block + 4;
  for (int64_t i = 0; i < 16; i += kVector) {
    const Bytes codes = BytesAt(block + 8 + i);
    PutMoved((codes & 15) | FifthBits(fifth + i / 8), scale, offset, out + i);
    PutMoved((codes >> 4) | FifthBits(fifth + i / 8 + 2), scale, offset, out + i + 16);
  }
}

// Types of 256 elements. Q4_K and Q5_K: eight groups of 32 with a scale and an offset of 6 bits each in 12 bytes.
struct GroupScale {
  float scale;
  float offset;
};

GroupScale GroupScaleAt(const std::byte* block, int group) {
  const std::byte* packed = block + 4;
  int scale = ByteAt(packed + group) & 63;
  int offset = ByteAt(packed + group + 4) & 63;
  if (group >= 4) {
    const int both = ByteAt(packed + group + 4);
    scale = (both & 15) | (ByteAt(packed + group - 4) >> 6) << 4;
    offset = (both >> 4) | (ByteAt(packed + group) >> 6) << 4;
  }
  return {HalfAt(block) * static_cast<float>(scale), HalfAt(block + 2) * static_cast<float>(offset)};
}

void DecodeQ4_K(const std::byte* block, float* out) {
  const std::byte* codes = block + 16;
  for (int pair = 0; pair < 4; ++pair, codes += 32, out += 64) {
    const GroupScale low = GroupScaleAt(block, 2 * pair);
    const GroupScale high = GroupScaleAt(block, 2 * pair + 1);
    for (int i = 0; i < 32; ++i) {
      out[i] = low.scale * static_cast<float>(ByteAt(codes + i) & 15) - low.offset;
      out[i + 32] = high.scale * static_cast<float>(ByteAt(codes + i) >> 4) - high.offset;
    }
  }
}

void DecodeQ5_K(const std::byte* block, float* out) {
  const std::byte* fifth = block + 16;  // bit g of byte i belongs to element i of group g
  const std::byte* codes = block + 48;
  for (int pair = 0; pair < 4; ++pair, codes += 32, out += 64) {
    const GroupScale low = GroupScaleAt(block, 2 * pair);
    const GroupScale high = GroupScaleAt(block, 2 * pair + 1);
    for (int i = 0; i < 32; ++i) {
      const int bits = ByteAt(fifth + i) >> (2 * pair);
      out[i] = low.scale * static_cast<float>((ByteAt(codes + i) & 15) | (bits & 1) << 4) - low.offset;
      out[i + 32] = high.scale * static_cast<float>((ByteAt(codes + i) >> 4) | (bits & 2) << 3) - high.offset;
    }
  }
}

// Sixteen groups of 16 with a signed scale each; codes of 4 + 2 bits.
void DecodeQ6_K(const std::byte* block, float* out) {
  const float scale = HalfAt(block + 208);
  for (int half = 0; half < 2; ++half, out += 128) {
    const std::byte* low = block + 64 * half;
    const std::byte* high = block + 128 + 32 * half;
    const std::byte* scales = block + 192 + 8 * half;
    uint8_t codes[128];  // plain loops, which compilers make wide
    for (int i = 0; i < 64; ++i) codes[i] = ByteAt(low + i) & 15;
    for (int i = 0; i < 64; ++i) codes[i + 64] = ByteAt(low + i) >> 4;
    for (int quarter = 0; quarter < 4; ++quarter) {
      uint8_t* part = codes + 32 * quarter;
      for (int i = 0; i < 32; ++i) {
        part[i] = static_cast<uint8_t>(part[i] | (ByteAt(high + i) >> (2 * quarter) & 3) << 4);
      }
    }
    for (int group = 0; group < 8; ++group) {
      const float group_scale = scale * static_cast<float>(SignedAt(scales + group));
      for (int i = 16 * group; i < 16 * group + 16; ++i) out[i] = group_scale * static_cast<float>(codes[i] - 32);
    }
  }
}

// Sixteen groups of 16: a scale and an offset of 4 bits each, codes of 2. Byte i of a half holds elements i, i + 32, ...
void DecodeQ2_K(const std::byte* block, float* out) {
  const float scale = HalfAt(block + 80);
  const float offset = HalfAt(block + 82);
  for (int group = 0; group < 16; ++group, out += 16) {
    const int packed = ByteAt(block + group);
    const float group_scale = scale * static_cast<float>(packed & 15);
    const float group_offset = offset * static_cast<float>(packed >> 4);
    const std::byte* codes = block + 16 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = group_scale * static_cast<float>(ByteAt(codes + i) >> shift & 3) - group_offset;
    }
  }
}

// Sixteen groups of 16 with a signed scale of 6 bits each; codes of 2 bits, less 4 where their third bit is not set.
void DecodeQ3_K(const std::byte* block, float* out) {
  const float scale = HalfAt(block + 108);
  for (int group = 0; group < 16; ++group, out += 16) {
    const int low = ByteAt(block + 96 + group % 8) >> (group < 8 ? 0 : 4) & 15;
    const int high = ByteAt(block + 104 + group % 4) >> (group / 4 * 2) & 3;
    const float group_scale = scale * static_cast<float>((low | high << 4) - 32);
    const std::byte* third = block + 16 * (group % 2);
    const std::byte* codes = block + 32 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      const int missing = ~(ByteAt(third + i) >> (group / 2)) & 1;
      out[i] = group_scale * static_cast<float>((ByteAt(codes + i) >> shift & 3) - (missing << 2));
    }
  }
}

// Codes that stand for other numbers: those of IQ4_NL and IQ4_XS, and twice the E2M1 floats.
constexpr float kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 32 elements; the first 16 are the low nibbles.
__attribute__((always_inline)) inline void PutNamed(const std::byte* codes, const float (&values)[16], float scale,
                                                    float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * values[ByteAt(codes + i) & 15];
    out[i + 16] = scale * values[ByteAt(codes + i) >> 4];
  }
}

void DecodeIQ4_NL(const std::byte* block, float* out) { PutNamed(block + 2, kNonlinear, HalfAt(block), out); }

// Eight groups of 32 with a signed scale each, of 4 + 2 bits.
void DecodeIQ4_XS(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const int high = ByteAt(block + 2) | ByteAt(block + 3) << 8;
  for (int group = 0; group < 8; ++group) {
    const int low = ByteAt(block + 4 + group / 2) >> (group % 2 * 4) & 15;
    const float group_scale = scale * static_cast<float>((low | (high >> (2 * group) & 3) << 4) - 32);
    PutNamed(block + 8 + 16 * group, kNonlinear, group_scale, out + 32 * group);
  }
}

// The scale is half of 2^(e - 127), for doubled numbers; 2^-128 and 2^-127 are no normal floats.
void DecodeMXFP4(const std::byte* block, float* out) {
  const uint32_t exponent = ByteAt(block);
  const uint32_t bits = exponent < 2 ? uint32_t{0x200000} << exponent : (exponent - 1) << 23;
  PutNamed(block + 1, kE2M1, BitsToFloat(bits), out);
}

template <void (*Decode)(const std::byte*, float*), int64_t kElements, int64_t kBytes>
void DecodeBlocks(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t done = 0; done < count; done += kElements, blocks += kBytes, out += kElements) Decode(blocks, out);
}

// F16ToFloat, with every way to read the bits taken and one chosen.
__attribute__((always_inline)) inline void PutHalves(Words halves, float* out) {
  const Ints sign = __builtin_convertvector(halves & 0x8000, Ints) << 16;
  const Ints magnitude = __builtin_convertvector(halves & 0x7fff, Ints);
  const Ints normal = (magnitude + 0x1c000) << 13;
  const Ints special = (magnitude & 0x3ff) << 13 | 0x7f800000;
  const Floats small = __builtin_convertvector(magnitude, Floats) * 5.9604644775390625e-8f;
  Ints subnormal;
  std::memcpy(&subnormal, &small, sizeof(small));
  const Ints bits = sign | (magnitude >= 0x7c00 ? special : magnitude >= 0x400 ? normal : subnormal);
  std::memcpy(out, &bits, sizeof(bits));
}

void DecodeF16(const std::byte* data, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    Words halves;
    std::memcpy(&halves, data + 2 * i, sizeof(halves));
    PutHalves(halves, out + i);
  }
  for (; i < count; ++i) out[i] = HalfAt(data + 2 * i);
}

void DecodeBf16(const std::byte* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    out[i] = Bf16ToFloat(bits);
  }
}

__attribute__((always_inline)) inline void DequantizeHere(Type type, const std::byte* blocks, int64_t count,
                                                          float* out) {
  switch (type) {
    case Type::kF32: std::memcpy(out, blocks, static_cast<size_t>(count) * sizeof(float)); return;
    case Type::kF16: DecodeF16(blocks, count, out); return;
    case Type::kBF16: DecodeBf16(blocks, count, out); return;
    case Type::kQ8_0: DecodeBlocks<DecodeQ8_0, 32, 34>(blocks, count, out); return;
    case Type::kQ4_0: DecodeBlocks<DecodeQ4_0, 32, 18>(blocks, count, out); return;
    case Type::kQ4_1: DecodeBlocks<DecodeQ4_1, 32, 20>(blocks, count, out); return;
    case Type::kQ5_0: DecodeBlocks<DecodeQ5_0, 32, 22>(blocks, count, out); return;
    case Type::kQ5_1: DecodeBlocks<DecodeQ5_1, 32, 24>(blocks, count, out); return;
    case Type::kQ4_K: DecodeBlocks<DecodeQ4_K, 256, 144>(blocks, count, out); return;
    case Type::kQ5_K: DecodeBlocks<DecodeQ5_K, 256, 176>(blocks, count, out); return;
    case Type::kQ6_K: DecodeBlocks<DecodeQ6_K, 256, 210>(blocks, count, out); return;
    case Type::kQ2_K: DecodeBlocks<DecodeQ2_K, 256, 84>(blocks, count, out); return;
    case Type::kQ3_K: DecodeBlocks<DecodeQ3_K, 256, 110>(blocks, count, out); return;
    case Type::kIQ4_NL: DecodeBlocks<DecodeIQ4_NL, 32, 18>(blocks, count, out); return;
    case Type::kIQ4_XS: DecodeBlocks<DecodeIQ4_XS, 256, 136>(blocks, count, out); return;
    case Type::kMXFP4: DecodeBlocks<DecodeMXFP4, 32, 17>(blocks, count, out); return;
  }
}

#if defined(__x86_64__)
// How far ahead of their use blocks are prefetched into L2, in bytes: rows are decoded one after another, and used in between.
constexpr int64_t kAhead = 6144;

// Q8_0 by the instructions that widen eight bytes at once: GCC 12 widens a vector of signed bytes one by one.
__attribute__((target("avx2"))) void DecodeQ8_0Avx2(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 32, blocks += 34) {
    _mm_prefetch(reinterpret_cast<const char*>(blocks) + kAhead, _MM_HINT_T1);
    const __m256 scale = _mm256_set1_ps(HalfAt(blocks));
    for (int64_t j = 0; j < 32; j += 8) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(blocks + 2 + j));
      _mm256_storeu_ps(out + i + j, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))));
    }
  }
}

// The same functions, compiled again; F32 operations are rounded as before (no fused ones).
__attribute__((target("avx2"), flatten)) void DequantizeAvx2(Type type, const std::byte* blocks, int64_t count,
                                                             float* out) {
  if (type == Type::kQ8_0) return DecodeQ8_0Avx2(blocks, count, out);
  DequantizeHere(type, blocks, count, out);
}
#endif

}  // namespace

void Dequantize(Type type, const std::byte* blocks, int64_t count, float* out) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return DequantizeAvx2(type, blocks, count, out);
#endif
  DequantizeHere(type, blocks, count, out);
}

}  // namespace stoch::gguf
