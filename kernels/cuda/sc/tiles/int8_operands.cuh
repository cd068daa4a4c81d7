// SPDX-License-Identifier: Apache-2.0
// How a block makes the token operands of int8_form.cuh from codes.
#pragma once

#include "kernels/cuda/sc/tiles/int8_form.cuh"
#include "kernels/cuda/sc/tiles/operand_lane.cuh"
#include "kernels/cuda/sc/tiles/transpose_bits.cuh"

namespace stoch::cuda::tiles {

// kInt8StageThreads: threads that make a stage of kTokens tokens. kInt8ConstantWords: words of shared memory in which
// they add the constants of int8_form.cuh.
template <int kTokens>
inline constexpr int kInt8StageThreads = kTokens* kTileInt8Dims / kWarpDims;
template <int kTokens>
inline constexpr int kInt8ConstantWords = kTileInt8Dims / kWarpDims* kTokens;

// Writes the token operands of a stage to `out` [Int8Layout<kTokens>::kWords], by kInt8StageThreads threads. All
// threads of the block call it, because it has a block barrier; each group of kInt8StageThreads threads makes a stage
// of its own. `entries`: [masks][256 codes]; constants: shared memory, kInt8ConstantWords.
template <int kTokens>
__device__ __forceinline__ void FillInt8Stage(const ScInt8Entry* entries, int masks, const OperandLane& at, int thread,
                                              uint32_t* constants, uint32_t* out) {
  using Layout = Int8Layout<kTokens>;
  static_assert(kTileInt8Dims == kTileDims && kTileInt8Dims == 2 * kWarpDims);
  uint32_t constant = 0;
#pragma unroll
  for (int w = 0; w < kWarpDims / 4; ++w) {
    const uint32_t word = w == 0 ? at.codes.x : at.codes.y;
    uint2 factors[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = at.first + w * 4 + i;
      const int mask = static_cast<int>(at.dim + w * 4 + i) & (masks - 1);
      const auto entry =
          __ldg(reinterpret_cast<const uint4*>(entries) + mask * 256 + static_cast<int>(word >> (8 * i) & 0xff));
      factors[i] = make_uint2(entry.x, entry.y);
      constant += entry.z >> (2 * kInt8Highs);
      const uint32_t high = TransposeBits(entry.z, at.lane);
      const uint32_t low = TransposeBits(entry.w, at.lane);
      if (at.lane < 2 * kInt8Highs) {
        const int h = at.lane % kInt8Highs;
        out[Layout::kHigh + d * Layout::kHighDimWords + h * Layout::kPairWords + at.group * 2 + at.lane / kInt8Highs] =
            high;
      }
      const int l = at.lane % kInt8Lows;
      out[Layout::kLow + d * Layout::kLowDimWords + (at.group * kInt8Lows + l) * 2 + at.lane / kInt8Lows] = low;
    }
    // Transposes bytes: factor e of four dimensions becomes the four bytes of element e's word.
    const int quad = at.first / 4 + w;
#pragma unroll
    for (int y = 0; y < 2; ++y) {
      uint32_t from[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) from[i] = y == 0 ? factors[i].x : factors[i].y;
      const uint32_t low01 = __byte_perm(from[0], from[1], 0x5140), low23 = __byte_perm(from[2], from[3], 0x5140);
      const uint32_t high01 = __byte_perm(from[0], from[1], 0x7362), high23 = __byte_perm(from[2], from[3], 0x7362);
      reinterpret_cast<uint4*>(out)[(y * kTokens + at.mine) * 4 + quad] =
          make_uint4(__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                     __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632));
    }
  }
  constants[at.first / kWarpDims * kTokens + at.mine] = constant;
  __syncthreads();
  if (thread < kTokens / 2) {
    constexpr int kTiles = kTokens / kTileTokens;
    const int t = thread / kTiles;
    const uint32_t* of = constants + thread % kTiles * kTileTokens + t * 2;
    out[Layout::kConstants + thread] = (of[0] + of[kTokens]) | (of[1] + of[kTokens + 1]) << 16;
  }
}

}  // namespace stoch::cuda::tiles
