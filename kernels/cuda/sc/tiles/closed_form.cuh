// SPDX-License-Identifier: Apache-2.0
// Loop body of tiles by the closed form of an operator (kernels/sc/closed_form/tile_form.h): a product is 23 stream bits, three int8
// elements and one residual bit, where streams have 128 bits.
//
// Operands of a stage of 32 dimensions, a word of quad t is of dimensions 4t to 4t + 3 of a block of 16:
//   [block][token][t][4] u32      bits of a dimension's token
//   [3][token][t][2] u32          a byte a dimension: elements 0, 1, 2 of block 0, then of block 1
//   [32 tokens]: [block][byte][t][8] u32, [block][byte][t][16] u32
//                                 the tokens' high and low steps by the weight's digits, bit n of token n
// Source: docs/closed-form.md.
#pragma once

#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/cuda/sc/tiles/frame.cuh"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda::tiles {

inline constexpr int kClosedBlocks = 2;
inline constexpr int kClosedGroup = 32;  // tokens of a word of steps
inline constexpr int kHighWords = kClosedBlocks * kTileDims * 8;
inline constexpr int kStepWords = kHighWords + kClosedBlocks * kTileDims * 16;

template <int kTokens>
struct ClosedLayout {
  static constexpr int kBitWords = kClosedBlocks * kTokens * kTileDims;
  static constexpr int kElementWords = 3 * kTokens * 4 * 2;
  static constexpr int kSteps = kBitWords + kElementWords;  // where words of steps begin
  static constexpr int kWords = kSteps + kTokens / kClosedGroup * kStepWords;
};

// Words of all codes: thermometers of both digits, complemented in all 32 bits where negative, of which bit 31 is the sign.
// Eight copies, so that lanes meet few banks twice. One load replaces five instructions a weight, two of which the pipe of
// address products has to do.
inline constexpr int kWordCopies = 8;
inline constexpr int kWordTableBytes = 256 * kWordCopies * 4;
static_assert(kWordTableBytes == kTileFormTableBytes);

// By all threads; a barrier is left to the caller.
__device__ __forceinline__ void FillWordTable(uint32_t* table) {
  for (int i = static_cast<int>(threadIdx.x); i < 256 * kWordCopies; i += static_cast<int>(blockDim.x)) {
    const int code = i / kWordCopies;
    const int level = code & 0x7f;
    const int boundary = level + level / 64;
    const uint32_t ones = ((1u << (boundary / 16)) - 1) | ((1u << (boundary % 16)) - 1) << 8;
    table[i] = code < 128 ? ones : ~ones;
  }
}

template <typename S>
struct ClosedFormBody {
  static constexpr int kBlocks = kClosedBlocks;
  static constexpr int kHalves = 1;
  using Layout = ClosedLayout<S::kTokens>;
  static constexpr int kOperandBytes = Layout::kWords * 4;
  static constexpr int kGroups = S::kTokens / kClosedGroup;

  uint32_t table;  // shared address of this lane's copy of the words

  // Operands of 16 rows and two dimensions of each quad, by the half of the quad.
  using Words = uint32_t[kRowOperands][2][4];

  // Makes the thermometers, residual bits and int8 elements of a block.
  __device__ __forceinline__ void MakeWeights(const uint32_t* stage, int block, int warp, int lane, Words& bits,
                                              Words (&residuals)[kGroups],
                                              uint32_t (&elements)[kRowOperands][3][2]) const {
    const auto* const codes = stage + Layout::kWords + (block * S::kRows + warp * kWarpRows) * (kTileDims / 4) + lane;
    const uint32_t quad = static_cast<uint32_t>(lane) % 4;
    const uint32_t high_at = SharedAddress(stage + Layout::kSteps + block * (kTileDims * 8)) + quad * 32;
    const uint32_t low_at = SharedAddress(stage + Layout::kSteps + kHighWords + block * (kTileDims * 16)) + quad * 64;
#pragma unroll
    for (int m = 0; m < kRowOperands; ++m) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t code = codes[(m * 16 + j * 8) * (kTileDims / 4)];
        const uint32_t boundary = DirectRanks<4>(code).packed;
        const uint32_t high = boundary >> 4 & 0x0f0f0f0f;
        const uint32_t low = boundary & 0x0f0f0f0f;
        const uint32_t signs = ByteSigns(code);
        elements[m][0][j] = high ^ signs;
        elements[m][1][j] = CorrectionRanks(signs, high + low);
        elements[m][2][j] = signs & 0x01010101;
        Unrolled<4>([&](auto i) {
          constexpr uint32_t kByte = 1u << (8 * i);
          const uint32_t word = LoadWord<0>(__dp4a(code, kByte * (kWordCopies * 4), table));
          bits[m][i / 2][j + i % 2 * 2] = word;
          const auto sign = static_cast<uint32_t>(static_cast<int32_t>(word) >> 31);
          const uint32_t high_word = __dp4a(high, kByte * 4, high_at + i * (4 * 32));
          const uint32_t low_word = __dp4a(low, kByte * 4, low_at + i * (4 * 64));
          Unrolled<kGroups>([&](auto g) {
            const uint32_t steps = LoadWord<g * kStepWords * 4>(high_word) & LoadWord<g * kStepWords * 4>(low_word);
            residuals[g][m][i / 2][j + i % 2 * 2] = steps ^ sign;
          });
        });
      }
    }
  }

  template <int kAt>
  static __device__ __forceinline__ uint32_t LoadWord(uint32_t address) {
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1 + %2];\n" : "=r"(r) : "r"(address), "n"(kAt));
    return r;
  }

  // Adds a stage.
  __device__ __forceinline__ void Multiply(const uint8_t* operands, int /*i*/, bool /*last*/, int warp, int lane,
                                           Sums<S>& sums) const {
    const auto* const stage = reinterpret_cast<const uint32_t*>(operands);
    uint32_t columns[4];  // the residual bit of a token of each of four tiles
#pragma unroll
    for (int n = 0; n < 4; ++n) columns[n] = 1u << (8 * n + lane / 4);
    uint32_t elements[kBlocks][kRowOperands][3][2];
    Unrolled<kBlocks>([&](auto block) {
      Words bits, residuals[kGroups];
      MakeWeights(stage, block, warp, lane, bits, residuals, elements[block]);
      const auto* const tokens = reinterpret_cast<const uint4*>(stage) + block * (S::kTokens * 4) + lane;
// Products into one accumulator depend on each other: four others are between them.
#pragma unroll
      for (int n = 0; n < S::kTokenTiles; n += 2) {
        const uint4 b[2] = {tokens[n * 32], tokens[(n + 1) * 32]};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int m = 0; m < kRowOperands; ++m) {
              MmaBits(sums[m][n + t], bits[m][half], half == 0 ? b[t].x : b[t].z, half == 0 ? b[t].y : b[t].w);
            }
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            const uint32_t column = columns[(n + t) % 4];
#pragma unroll
            for (int m = 0; m < kRowOperands; ++m) {
              MmaBits(sums[m][n + t], residuals[n / 4][m][half], column, column);
            }
          }
        }
      }
    });
    const auto* const factors = reinterpret_cast<const uint2*>(stage + Layout::kBitWords) + lane;
    Unrolled<3>([&](auto p) {
      constexpr int kFirst = 2 * p, kSecond = 2 * p + 1;
#pragma unroll
      for (int n = 0; n < S::kTokenTiles; ++n) {
        const uint2 b = factors[(p * S::kTokenTiles + n) * 32];
#pragma unroll
        for (int m = 0; m < kRowOperands; ++m) {
          const uint32_t a[4] = {elements[kFirst / 3][m][kFirst % 3][0], elements[kFirst / 3][m][kFirst % 3][1],
                                 elements[kSecond / 3][m][kSecond % 3][0], elements[kSecond / 3][m][kSecond % 3][1]};
          MmaBytes(sums[m][n], a, b.x, b.y);
        }
      }
    });
  }
};

}  // namespace stoch::cuda::tiles
