// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/cuda/weights/decode.h"
#include "kernels/math/half.h"
#include "kernels/math/number_formats.h"

namespace stoch::cuda {
namespace {

constexpr int kEach = 8;  // columns that a thread decodes; all lie in one block (WeightCodes::block)

__device__ float E4m3Number(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float number = static_cast<float>(E4m3Level(static_cast<uint8_t>(magnitude))) * PowerOfTwo(-kE4m3UnitBits);
  return BitsToFloat((magnitude == 0x7f ? 0x7fc00000u : FloatToBits(number)) | (code & 0x80) << 24);
}

struct CodeDecoder {
  WeightCodes codes;
  CodeSlab slab;
  int64_t blocks;  // blocks of a row
  float* out;

  __device__ float Number(int64_t row, int64_t eight, int i) const {
    if (codes.form == WeightCodes::Form::kNibbles) {
      return static_cast<float>(slab.words[eight * slab.rows + row] >> 4 * i & 15);
    }
    return E4m3Number(slab.words[(row * codes.cols + eight * kEach + i) / 4] >> 8 * (i % 4) & 0xff);
  }
  __device__ float Rounded(float x) const {
    if (codes.rounded == DType::kF16) return F16ToFloat(FloatToF16(x));
    return codes.rounded == DType::kBF16 ? RoundToBf16(x) : x;
  }
  __device__ void operator()(int64_t index) const {
    const int64_t row = index / (codes.cols / kEach);
    const int64_t eight = index % (codes.cols / kEach);
    const int64_t block = row * blocks + eight * kEach / codes.block;
    const float scale = slab.scales[block];
    const float zero = slab.zeros[block];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      out[index * kEach + i] = Rounded(scale * (Number(row, eight, i) - zero));
    }
  }
};

}  // namespace

void LaunchDecodeCodes(DeviceContext& ctx, const WeightCodes& codes, const CodeSlab& slab, float* out) {
  LaunchForEach(ctx, slab.rows * codes.cols / kEach, CodeDecoder{codes, slab, codes.blocks(), out});
}

}  // namespace stoch::cuda
