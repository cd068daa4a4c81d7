// SPDX-License-Identifier: Apache-2.0
// Loop body of tiles (frame.cuh) for operators with the closed form (kernels/sc/closed_form/tile_form.h): a product
// takes 23 stream bits, three int8 elements and one residual bit, instead of 128 stream bits.
//
// Token operands of a stage of 32 dimensions (two blocks of 16); lane t of a quad has dimensions 4t to 4t + 3 of a
// block:
//   [block][token][t][4] u32     the 23 bits X of a token in one dimension
//   [3][token][t][2] u32         int8 elements, a byte a dimension: elements 0, 1, 2 of block 0, then of block 1
//   and for every 32 tokens, bit n of a word being token n's,
//   [block][byte][t][8] u32      high steps of dimension 4t + byte, by the weight's high digit
//   [block][byte][t][16] u32     low steps of dimension 4t + byte, by the weight's low digit
// A weight's digits are those of its boundary, 16 * high + low. The residual bit is (high step AND low step),
// complemented if the weight is negative. Boundary 128 has high digit 8, past the 8 words, and low digit 0, whose step
// is 0: whichever word is read, the residual bit is right.
// Source: docs/closed-form.md.
#pragma once

#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/cuda/sc/tiles/frame.cuh"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda::tiles {

inline constexpr int kClosedBlocks = 2;                                         // blocks of 16 dimensions of a stage
inline constexpr int kClosedGroup = 32;                                         // tokens whose steps share a word
inline constexpr int kHighWords = kClosedBlocks * kTileDims * 8;                // words of high steps of 32 tokens
inline constexpr int kStepWords = kHighWords + kClosedBlocks * kTileDims * 16;  // words of all steps of 32 tokens

// Sizes and offsets, in words, of the token operands of a stage.
template <int kTokens>
struct ClosedLayout {
  static constexpr int kBitWords = kClosedBlocks * kTokens * kTileDims;
  static constexpr int kElementWords = 3 * kTokens * 4 * 2;
  static constexpr int kSteps = kBitWords + kElementWords;  // offset of the high and low steps
  static constexpr int kWords = kSteps + kTokens / kClosedGroup * kStepWords;
};

// The word table in shared memory, [256 codes][8 copies]: for each weight code, the 32-bit word W of thermometers of
// both digits (`high` ones from bit 0, `low` ones from bit 8), complemented in all bits if the weight is negative, so
// bit 31 is the sign. Lane l reads copy l % 8, for few bank conflicts. One load replaces five instructions a
// weight, two of them on the pipe that also makes the addresses.
inline constexpr int kWordCopies = 8;
inline constexpr int kWordTableBytes = 256 * kWordCopies * 4;
static_assert(kWordTableBytes == kTileFormTableBytes);

// Fills the word table, by all threads of the block. The caller's next barrier makes it visible.
__device__ __forceinline__ void FillWordTable(uint32_t* table) {
  for (int i = static_cast<int>(threadIdx.x); i < 256 * kWordCopies; i += static_cast<int>(blockDim.x)) {
    const int code = i / kWordCopies;
    const int level = code & 0x7f;
    const int boundary = level + level / 64;
    const uint32_t ones = ((1u << (boundary / 16)) - 1) | ((1u << (boundary % 16)) - 1) << 8;
    table[i] = code < 128 ? ones : ~ones;
  }
}

// The Body of RunTiles for the closed form.
template <typename S>
struct ClosedFormBody {
  static constexpr int kBlocks = kClosedBlocks;
  static constexpr int kHalves = 1;
  using Layout = ClosedLayout<S::kTokens>;
  static constexpr int kOperandBytes = Layout::kWords * 4;
  static constexpr int kGroups = S::kTokens / kClosedGroup;

  uint32_t table;  // shared address of this lane's copy in the word table

  // A lane's fragments of operand A: [operand of 16 rows][half][register]. Half 0 has dimensions 4t and 4t + 1 of a
  // block, half 1 dimensions 4t + 2 and 4t + 3.
  using Words = uint32_t[kRowOperands][2][4];

  // Makes a lane's fragments of operand A for block `block` of a stage: words of thermometers (bits), residual bits of
  // each group of 32 tokens (residuals), and int8 elements [operand of 16 rows][element][row lane / 4 or 8 + lane / 4].
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

  // Loads a word from shared address `address` + kAt.
  template <int kAt>
  static __device__ __forceinline__ uint32_t LoadWord(uint32_t address) {
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1 + %2];\n" : "=r"(r) : "r"(address), "n"(kAt));
    return r;
  }

  // Adds the products of a stage to `sums`, by a warp.
  __device__ __forceinline__ void Multiply(const uint8_t* operands, int /*i*/, bool /*last*/, int warp, int lane,
                                           Sums<S>& sums) const {
    const auto* const stage = reinterpret_cast<const uint32_t*>(operands);
    uint32_t columns[4];  // operand B whose column lane / 4 selects token 8 n + lane / 4 of 32
#pragma unroll
    for (int n = 0; n < 4; ++n) columns[n] = 1u << (8 * n + lane / 4);
    uint32_t elements[kBlocks][kRowOperands][3][2];
    Unrolled<kBlocks>([&](auto block) {
      Words bits, residuals[kGroups];
      MakeWeights(stage, block, warp, lane, bits, residuals, elements[block]);
      const auto* const tokens = reinterpret_cast<const uint4*>(stage) + block * (S::kTokens * 4) + lane;
// An mma waits for the one before it on the same accumulator, so three mma on other accumulators lie in between.
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
