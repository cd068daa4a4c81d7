// SPDX-License-Identifier: Apache-2.0
// The kernel of ../fixed_tile.cuh with products of warpgroups.
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/linear/fixed_tile.cuh"

namespace stoch::cuda::fixed {
namespace {

// wgmma: four warps multiply together, while they make the operands of the next step.
struct GroupProducts {
  static __device__ __forceinline__ void ShowCopies() { FenceAsyncProxy(); }

  // Products of a warpgroup's 64 weight rows with kTileTokens rows of x in one step. Returns when the products of the
  // previous step are complete, so the operand registers of that step may be overwritten. step: shared address of the
  // step's x.
  static __device__ __forceinline__ void Multiply(uint32_t (&low)[4], uint32_t (&high)[4], uint32_t step,
                                                  int32_t (&sums)[kLevels][kSums]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    Pin(low);
    Pin(high);
    WgmmaFence();
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      const uint64_t b = Descriptor(DescriptorLow<kTileColumns * 16>(step + digit * kTileTokens * 16));
      Wgmma<kTileTokens>::UnsignedBytes(sums[digit], low, b);
      Wgmma<kTileTokens>::Bytes(sums[digit + 1], high, b);
    }
    WgmmaCommit();
    WgmmaWait<1>(sums[0]);
#else
    __trap();  // unreachable: plans choose this kernel only for GPUs with wgmma
#endif
  }

  // Waits for the products of the last step.
  static __device__ __forceinline__ void Finish(int32_t (&sums)[kLevels][kSums]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma unroll
    for (int level = 0; level < kLevels; ++level) WgmmaWait<0>(sums[level]);
#endif
  }
};

}  // namespace

void LaunchFixedWgmma(DeviceContext& ctx, const FixedArgs& args) { LaunchTiles<GroupProducts>(ctx, args); }

}  // namespace stoch::cuda::fixed
