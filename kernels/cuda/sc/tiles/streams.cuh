// SPDX-License-Identifier: Apache-2.0
// Loop body of tiles (frame.cuh) for any operator with streams: a count is popcount(A & B), A a weight's thermometer
// made in registers and B an activation's stream.
#pragma once

#include "kernels/cuda/sc/hopper/ranks.cuh"
#include "kernels/cuda/sc/tiles/frame.cuh"

namespace stoch::cuda::tiles {

// The Body of RunTiles for streams of kWords words in each of kHalves halves. kTable: ranks of weight levels come from
// a table in shared memory (FillRankTable); else they are DirectRanks.
template <typename S, int kWords, int kHalves_, bool kTable>
struct StreamBody {
  static constexpr int kBlocks = 1;
  static constexpr int kHalves = kHalves_;
  static constexpr int kUnitBytes = S::kTokens * 16;
  static constexpr int kOperandBytes = (4 * kWords + 2) * kUnitBytes;

  const TileArgs& args;
  uint32_t table;  // shared address of the rank table

  // Adds the products of stage i of a chunk to `sums`, by a warp: 2 * kWords binary mma steps of 256 bits of the inner
  // dimension, then one int8 step that corrects signs.
  __device__ __forceinline__ void Multiply(const uint8_t* operands, int i, bool /*last*/, int warp, int lane,
                                           Sums<S>& sums) const {
    const int block = i / kHalves;
    const uint32_t quad = static_cast<uint32_t>(lane) % 4;
    const auto* const mine = reinterpret_cast<const uint32_t*>(operands + kOperandBytes + warp * kTileBytes) + lane;
    uint32_t codes[kRowOperands][2];
    std::conditional_t<kTable, ApartRanks, PackedRanks> ranks[kRowOperands][2];
#pragma unroll
    for (int m = 0; m < kRowOperands; ++m) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        codes[m][j] = mine[(m * 16 + j * 8) * (kTileDims / 4)];
        if constexpr (kTable) {
          const int masks = max(args.masks, 16);
          const int mask = i % kHalves * masks + (block * 16 & (masks - 1));
          ranks[m][j] = TableRanks(table + static_cast<uint32_t>(mask * 128) + quad * 4 * 128, codes[m][j]);
        } else {
          ranks[m][j] = DirectRanks<kWords>(codes[m][j], block);
        }
      }
    }
    // ldmatrix addresses: lane l gives row l % 8 of matrix l / 8. The four matrices are two units for each of two tiles
    // of 8 tokens.
    const uint32_t units = SharedAddress(operands) + static_cast<uint32_t>(lane / 8 % 2) * kUnitBytes +
                           static_cast<uint32_t>(lane / 16 * 8 + lane % 8) * 16;
    Unrolled<2 * kWords + 1>([&](auto step) {
      uint32_t a[kRowOperands][4];
#pragma unroll
      for (int m = 0; m < kRowOperands; ++m) {
        if constexpr (step < 2 * kWords) {
          StepOperand<kWords, step>(a[m], codes[m], ranks[m], args.minus_one);
        } else {
          CorrectionOperand(a[m], codes[m], ranks[m]);
        }
      }
#pragma unroll
      for (int n = 0; n < S::kTokenTiles; n += 2) {
        uint32_t b[4];
        LoadMatrices(b, units + 2 * step * kUnitBytes + n * kTileTokens * 16);
#pragma unroll
        for (int m = 0; m < kRowOperands; ++m) {
          if constexpr (step < 2 * kWords) {
            MmaBits(sums[m][n], a[m], b[0], b[1]);
            MmaBits(sums[m][n + 1], a[m], b[2], b[3]);
          } else {
            MmaBytes(sums[m][n], a[m], b[0], b[1]);
            MmaBytes(sums[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
    });
  }
};

}  // namespace stoch::cuda::tiles
