// SPDX-License-Identifier: Apache-2.0
// The kernel of fixed_tile.cuh with products of warps, which every GPU has.
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/linear/fixed_tile.cuh"

namespace stoch::cuda::fixed {
namespace {

// mma.sync: each warp multiplies on its own.
struct WarpProducts {
  static __device__ __forceinline__ void ShowCopies() {}
  static __device__ __forceinline__ void Finish(const int32_t (&)[kLevels][kSums]) {}

  // Products of a warp's 16 weight rows with kTileTokens rows of x in one step. step: shared address of the step's x.
  static __device__ __forceinline__ void Multiply(const uint32_t (&low)[4], const uint32_t (&high)[4], uint32_t step,
                                                  int32_t (&sums)[kLevels][kSums]) {
    // One ldmatrix loads four matrices: both halves of two tiles of 8 columns.
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t from = step + lane / 8 % 2 * (kTileColumns * 16) + (lane / 16 * 8 + lane % 8) * 16;
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
#pragma unroll
      for (int pair = 0; pair < kTileTokens / 16; ++pair) {
        uint32_t b[4];
        LoadMatrices(b, from + (digit * kTileTokens + pair * 16) * 16);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = (pair * 2 + i) * 4;
          const auto add = [&](int level, const auto& multiply, const uint32_t(&a)[4]) {
            int32_t(&d)[4] = *reinterpret_cast<int32_t(*)[4]>(&sums[level][at]);
            multiply(d, a, b[2 * i], b[2 * i + 1]);
          };
          add(digit, MmaUnsignedBytes, low);
          add(digit + 1, MmaBytes, high);
        }
      }
    }
  }
};

}  // namespace

void LaunchFixedTiles(DeviceContext& ctx, const FixedArgs& args) { LaunchTiles<WarpProducts>(ctx, args); }

}  // namespace stoch::cuda::fixed
