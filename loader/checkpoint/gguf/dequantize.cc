// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF tensors as floats.
#include <cstring>

#include "kernels/math/half.h"
#include "loader/checkpoint/gguf/types.h"

namespace stoch::gguf {
namespace {

uint8_t ByteAt(const std::byte* at) { return static_cast<uint8_t>(*at); }
int8_t SignedAt(const std::byte* at) { return static_cast<int8_t>(*at); }

float HalfAt(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return F16ToFloat(bits);
}

// Types of 32 elements: a scale, for some an offset, then codes. The first 16 elements are the low nibbles.
void DecodeQ8_0(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(SignedAt(block + 2 + i));
}

void DecodeQ4_0(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  for (int i = 0; i < 16; ++i) {
    const int codes = ByteAt(block + 2 + i);
    out[i] = scale * static_cast<float>((codes & 15) - 8);
    out[i + 16] = scale * static_cast<float>((codes >> 4) - 8);
  }
}

void DecodeQ4_1(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const float offset = HalfAt(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int codes = ByteAt(block + 4 + i);
    out[i] = scale * static_cast<float>(codes & 15) + offset;
    out[i + 16] = scale * static_cast<float>(codes >> 4) + offset;
  }
}

// The fifth bits of all elements in one word.
uint32_t FifthBits(const std::byte* at) {
  uint32_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

void DecodeQ5_0(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const uint32_t fifth = FifthBits(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int codes = ByteAt(block + 6 + i);
    const int low = (codes & 15) | static_cast<int>((fifth >> i & 1) << 4);
    const int high = (codes >> 4) | static_cast<int>((fifth >> (i + 16) & 1) << 4);
    out[i] = scale * static_cast<float>(low - 16);
    out[i + 16] = scale * static_cast<float>(high - 16);
  }
}

void DecodeQ5_1(const std::byte* block, float* out) {
  const float scale = HalfAt(block);
  const float offset = HalfAt(block + 2);
  const uint32_t fifth = FifthBits(block + 4);
  for (int i = 0; i < 16; ++i) {
    const int codes = ByteAt(block + 8 + i);
    const int low = (codes & 15) | static_cast<int>((fifth >> i & 1) << 4);
    const int high = (codes >> 4) | static_cast<int>((fifth >> (i + 16) & 1) << 4);
    out[i] = scale * static_cast<float>(low) + offset;
    out[i + 16] = scale * static_cast<float>(high) + offset;
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
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int group = 0; group < 2; ++group) {
        const float group_scale = scale * static_cast<float>(SignedAt(scales + 2 * quarter + group));
        for (int i = 16 * group; i < 16 * group + 16; ++i) {
          const int codes = ByteAt(low + 32 * (quarter & 1) + i) >> (quarter < 2 ? 0 : 4) & 15;
          const int code = codes | (ByteAt(high + i) >> (2 * quarter) & 3) << 4;
          out[32 * quarter + i] = group_scale * static_cast<float>(code - 32);
        }
      }
    }
  }
}

template <void (*Decode)(const std::byte*, float*), int64_t kElements, int64_t kBytes>
void DecodeBlocks(const std::byte* blocks, int64_t count, float* out) {
  for (int64_t done = 0; done < count; done += kElements, blocks += kBytes, out += kElements) Decode(blocks, out);
}

template <float (*Convert)(uint16_t)>
void DecodeHalves(const std::byte* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    out[i] = Convert(bits);
  }
}

}  // namespace

void Dequantize(Type type, const std::byte* blocks, int64_t count, float* out) {
  switch (type) {
    case Type::kF32: std::memcpy(out, blocks, static_cast<size_t>(count) * sizeof(float)); return;
    case Type::kF16: DecodeHalves<F16ToFloat>(blocks, count, out); return;
    case Type::kBF16: DecodeHalves<Bf16ToFloat>(blocks, count, out); return;
    case Type::kQ8_0: DecodeBlocks<DecodeQ8_0, 32, 34>(blocks, count, out); return;
    case Type::kQ4_0: DecodeBlocks<DecodeQ4_0, 32, 18>(blocks, count, out); return;
    case Type::kQ4_1: DecodeBlocks<DecodeQ4_1, 32, 20>(blocks, count, out); return;
    case Type::kQ5_0: DecodeBlocks<DecodeQ5_0, 32, 22>(blocks, count, out); return;
    case Type::kQ5_1: DecodeBlocks<DecodeQ5_1, 32, 24>(blocks, count, out); return;
    case Type::kQ4_K: DecodeBlocks<DecodeQ4_K, 256, 144>(blocks, count, out); return;
    case Type::kQ5_K: DecodeBlocks<DecodeQ5_K, 256, 176>(blocks, count, out); return;
    case Type::kQ6_K: DecodeBlocks<DecodeQ6_K, 256, 210>(blocks, count, out); return;
  }
}

}  // namespace stoch::gguf
