// SPDX-License-Identifier: Apache-2.0
// Loop body of tiles (frame.cuh) for operators with the closed form, on GPUs without binary mma
// (kernels/sc/closed_form/int8_form.h): a product is eight int8 elements, and three bits that are looked up and
// counted.
//
// A lane looks up the bits of one weight row, a word for 32 tokens, and adds them to bit-sliced counters of nine bits:
// bit n of plane k is bit k of token n's count (carry-save adders, two instructions a word). Every 128 dimensions a
// warp moves the counts through shared memory from one row a lane to the accumulator layout of mma.sync.
//
// Token operands of a stage of 16 dimensions; lane t of a quad has dimensions 4t to 4t + 3, and e_h, d, e_l, m and c
// are those of int8_form.h:
//   [2][token][t][4] u32                   elements, a byte a dimension: elements 0 to 3, then 4 to 7
//   [dimension][9][groups of 32][2] u32    e_h and d for each high digit of a weight, bit n of token n of the group
//   [dimension][groups of 32][16][2] u32   e_l and m for each low digit of a weight, bit n of token n of the group
//   [t][tiles of 8 tokens] u32             -c summed over the 16 dimensions; 16 bits each for tokens 2t and 2t + 1
// Source: docs/closed-form.md.
#pragma once

#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/cuda/sc/tiles/frame.cuh"
#include "kernels/plan/linear/sc.h"
#include "kernels/sc/closed_form/int8_form.h"

namespace stoch::cuda::tiles {

// Sizes and offsets, in words, of the token operands of a stage.
template <int kTokens>
struct Int8Layout {
  static constexpr int kGroups = kTokens / 32;  // groups of 32 tokens, which share a word
  static constexpr int kPairWords = 2 * kGroups;
  static constexpr int kHighDimWords = kInt8Highs * kPairWords;
  static constexpr int kLowDimWords = kInt8Lows * kPairWords;
  // Offsets of the words by high digit, the words by low digit, and the constants.
  static constexpr int kHigh = 2 * kTokens * kTileDims;
  static constexpr int kLow = kHigh + kTileDims * kHighDimWords;
  static constexpr int kConstants = kLow + kTileDims * kLowDimWords;
  static constexpr int kWords = kConstants + kTokens / 2;
  static_assert(kWords * 4 == kTokens * kTileInt8TokenBytes);
};

// A full adder in each bit position: 2 * carry + sum = a + b + c.
__device__ __forceinline__ void AddBits(uint32_t& carry, uint32_t& sum, uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t majority = (a & b) | (a & c) | (b & c);
  sum = a ^ b ^ c;
  carry = majority;
}

// Transposes an 8 x 8 bit matrix in each of the four bytes: bit i of p[j] and bit j of p[i] (of one byte position)
// change places.
__device__ __forceinline__ void TransposeBytes(uint32_t (&p)[8]) {
  constexpr uint32_t kLow[3] = {0x0f0f0f0f, 0x33333333, 0x55555555};
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    const int distance = 4 >> step;
    const uint32_t low = kLow[step];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t a = p[i], b = p[i + distance];
      p[i] = (a & low) | (b << distance & ~low);
      p[i + distance] = (a >> distance & low) | (b & ~low);
    }
  }
}

// The Body of RunTiles for the closed form in int8.
template <typename S>
struct Int8FormBody {
  static constexpr int kBlocks = 1;
  static constexpr int kHalves = 1;
  using Layout = Int8Layout<S::kTokens>;
  static constexpr int kGroups = Layout::kGroups;
  static constexpr int kOperandBytes = Layout::kWords * 4;
  static constexpr int kPlanes = 9;  // bits of a counter
  // Flush empties the counters at least once in this many stages, so that none overflows: a stage adds three bits for
  // each of its 16 dimensions, and 8 * 16 * 3 = 384 < 2^kPlanes.
  static constexpr int kFlushBlocks = 8;

  uint32_t flip;                            // shared address of the warp's kTileFlipBytes, scratch of Flush
  uint32_t planes[kGroups][kPlanes] = {};   // bit planes of the counters of this lane's weight row
  uint32_t constants[S::kTokenTiles] = {};  // sums of -c since the last flush, of tokens 2t and 2t + 1 of each tile

  // Loads the two words of a digit from a shared address.
  static __device__ __forceinline__ void LoadPair(uint32_t address, uint32_t* to) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
  }
  // LoadHigh and LoadLow load the word pairs of all token groups for a digit at a shared address. For high digits, of
  // which few are frequent, the pairs of all groups are contiguous and take one load. Low digits are spread evenly: the
  // 16 pairs of one group are contiguous and fill all banks.
  static __device__ __forceinline__ void LoadHigh(uint32_t address, uint32_t (&to)[2 * kGroups]) {
    if constexpr (kGroups == 1) {
      LoadPair(address, to);
    } else {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(address));
    }
  }
  static __device__ __forceinline__ void LoadLow(uint32_t address, uint32_t (&to)[2 * kGroups]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) LoadPair(address + g * (kInt8Lows * 8), to + 2 * g);
  }

  // Looks up the bits of weight row `lane` of the warp's `rows` in the stage's 16 dimensions and adds them to `planes`.
  __device__ __forceinline__ void CountBits(const uint32_t* stage, const uint4* rows, int lane) {
    static_assert(kGroups <= 2);
    const uint4 codes = rows[lane];
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    const uint32_t high_at = SharedAddress(stage + Layout::kHigh);
    const uint32_t low_at = SharedAddress(stage + Layout::kLow);
    uint32_t eights[kGroups][6];  // carries of weight 8, three from each half of the dimensions
    Unrolled<2>([&](auto half) {
      uint32_t ones[8][kGroups], twos[8][kGroups];
      Unrolled<2>([&](auto w) {
        const uint32_t code = words[half * 2 + w];
        const uint32_t boundary = DirectRanks<4>(code).packed;
        const uint32_t high = boundary >> 4 & 0x0f0f0f0f;
        const uint32_t low = boundary & 0x0f0f0f0f;
        const uint32_t signs = ByteSigns(code);
        Unrolled<4>([&](auto i) {
          constexpr int kDim = half * 8 + w * 4 + i;
          const auto sign = static_cast<uint32_t>(__dp4a(static_cast<int>(signs), 1 << (8 * i), 0));
          uint32_t h[2 * kGroups], l[2 * kGroups];
          LoadHigh(
              __dp4a(high, uint32_t{Layout::kPairWords * 4} << (8 * i), high_at) + kDim * Layout::kHighDimWords * 4, h);
          LoadLow(__dp4a(low, 8u << (8 * i), low_at) + kDim * Layout::kLowDimWords * 4, l);
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            AddBits(twos[w * 4 + i][g], ones[w * 4 + i][g], h[2 * g] ^ sign, l[2 * g] ^ sign,
                    (h[2 * g + 1] & l[2 * g + 1]) ^ sign);
          }
        });
      });
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        uint32_t(&p)[kPlanes] = planes[g];
        uint32_t carried[4], fours[6];
#pragma unroll
        for (int z = 0; z < 4; ++z) AddBits(carried[z], p[0], p[0], ones[2 * z][g], ones[2 * z + 1][g]);
#pragma unroll
        for (int z = 0; z < 4; ++z) AddBits(fours[z], p[1], p[1], twos[2 * z][g], twos[2 * z + 1][g]);
        AddBits(fours[4], p[1], p[1], carried[0], carried[1]);
        AddBits(fours[5], p[1], p[1], carried[2], carried[3]);
#pragma unroll
        for (int z = 0; z < 3; ++z) AddBits(eights[g][half * 3 + z], p[2], p[2], fours[2 * z], fours[2 * z + 1]);
      }
    });
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t(&p)[kPlanes] = planes[g];
      uint32_t sixteens[3];
#pragma unroll
      for (int z = 0; z < 3; ++z) AddBits(sixteens[z], p[3], p[3], eights[g][2 * z], eights[g][2 * z + 1]);
      uint32_t carry[2];
      AddBits(carry[0], p[4], p[4], sixteens[0], sixteens[1]);
      carry[1] = p[4] & sixteens[2];
      p[4] ^= sixteens[2];
      uint32_t carried;
      AddBits(carried, p[5], p[5], carry[0], carry[1]);
      const uint32_t last = p[6] & carried;
      p[6] ^= carried;
      p[8] ^= p[7] & last;
      p[7] ^= last;
    }
  }

  // Adds the int8 mma products of the stage's elements to `sums`.
  __device__ __forceinline__ void AddElements(const uint32_t* stage, const uint4* rows, int lane, Sums<S>& sums) const {
    const auto* const codes = reinterpret_cast<const uint32_t*>(rows) + lane;
    uint32_t elements[kRowOperands][2][8];
#pragma unroll
    for (int m = 0; m < kRowOperands; ++m) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t code = codes[(m * 16 + j * 8) * (kTileDims / 4)];
        const uint32_t boundary = DirectRanks<4>(code).packed;
        const uint32_t signs = ByteSigns(code);
        elements[m][j][0] = (boundary & 0x01010101) ^ signs;
#pragma unroll
        for (int e = 1; e < 7; ++e) elements[m][j][e] = (boundary >> e & (0xffu >> e) * 0x01010101u) ^ signs;
        elements[m][j][7] = signs & 0x01010101;
      }
    }
    const auto* const factors = reinterpret_cast<const uint4*>(stage) + lane;
// An mma waits for the one before it on the same accumulator, so three mma on other accumulators lie in between.
#pragma unroll
    for (int n = 0; n < S::kTokenTiles; n += 2) {
#pragma unroll
      for (int y = 0; y < 2; ++y) {
        const uint4 b[2] = {factors[(y * S::kTokenTiles + n) * 32], factors[(y * S::kTokenTiles + n + 1) * 32]};
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const int e = y * 4 + pair * 2;
#pragma unroll
          for (int t = 0; t < 2; ++t) {
#pragma unroll
            for (int m = 0; m < kRowOperands; ++m) {
              const uint32_t a[4] = {elements[m][0][e], elements[m][1][e], elements[m][0][e + 1],
                                     elements[m][1][e + 1]};
              MmaBytes(sums[m][n + t], a, pair == 0 ? b[t].x : b[t].z, pair == 0 ? b[t].y : b[t].w);
            }
          }
        }
      }
    }
  }

  // Adds the counts and constants since the last flush to `sums`, by a warp, and zeroes them.
  __device__ __forceinline__ void Flush(int lane, Sums<S>& sums) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t(&p)[kPlanes] = planes[g];
      uint32_t counts[8] = {p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]};
      TransposeBytes(counts);  // byte k of counts[j]: count of token 8 k + j without its lowest bit, plane 0
      __syncwarp();
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(flip + lane * 32), "r"(counts[0]), "r"(counts[1]),
                   "r"(counts[2]), "r"(counts[3])
                   : "memory");
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(flip + lane * 32 + 16), "r"(counts[4]),
                   "r"(counts[5]), "r"(counts[6]), "r"(counts[7])
                   : "memory");
      asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(flip + 32 * 32 + lane * 4), "r"(p[0]) : "memory");
      __syncwarp();
#pragma unroll
      for (int m = 0; m < kRowOperands; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = m * 16 + r * 8 + lane / 4;
          uint32_t halves[2], ones;
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
                       : "=r"(halves[0]), "=r"(halves[1])
                       : "r"(flip + row * 32 + lane % 4 * 8)
                       : "memory");
          asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(ones) : "r"(flip + 32 * 32 + row * 4) : "memory");
          ones >>= lane % 4 * 2;
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const uint32_t c = constants[g * 4 + t];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              int32_t& sum = sums[m][g * 4 + t][r * 2 + i];
              const uint32_t bits = (ones >> i) & 0x01010101;
              const uint32_t more =
                  __dp4a(bits, 1u << (8 * t), __dp4a(halves[i], 2u << (8 * t), static_cast<uint32_t>(sum)));
              sum = static_cast<int32_t>(more - (i == 0 ? c & 0xffff : c >> 16));
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kPlanes; ++i) p[i] = 0;
    }
#pragma unroll
    for (int n = 0; n < S::kTokenTiles; ++n) constants[n] = 0;
  }

  // Adds the products of stage i of a chunk, by a warp; also flushes the counters after the chunk's last stage. In
  // `operands` the rows' codes follow the token operands.
  __device__ __forceinline__ void Multiply(const uint8_t* operands, int i, bool last, int warp, int lane,
                                           Sums<S>& sums) {
    const auto* const stage = reinterpret_cast<const uint32_t*>(operands);
    MultiplyRows(stage, reinterpret_cast<const uint4*>(stage + Layout::kWords) + warp * kWarpRows,
                 last || i % kFlushBlocks == kFlushBlocks - 1, lane, sums);
  }

  // Adds the products of a stage and the warp's rows, whose codes [kWarpRows] are in shared memory, by a warp; and then
  // flushes the counters if `flush` is true. Requires: `flush` is true at least once in kFlushBlocks calls.
  __device__ __forceinline__ void MultiplyRows(const uint32_t* stage, const uint4* rows, bool flush, int lane,
                                               Sums<S>& sums) {
    CountBits(stage, rows, lane);
    AddElements(stage, rows, lane, sums);
    const auto* const mine =
        reinterpret_cast<const uint4*>(stage + Layout::kConstants) + lane % 4 * (S::kTokenTiles / 4);
#pragma unroll
    for (int n = 0; n < S::kTokenTiles; n += 4) {
      const uint4 c = mine[n / 4];
      constants[n] += c.x;
      constants[n + 1] += c.y;
      constants[n + 2] += c.z;
      constants[n + 3] += c.w;
    }
    if (flush) Flush(lane, sums);
  }
};

}  // namespace stoch::cuda::tiles
