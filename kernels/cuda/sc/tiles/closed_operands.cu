// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tiles/closed_form.cuh"
#include "kernels/cuda/sc/tiles/closed_operands.h"
#include "kernels/cuda/sc/tiles/transpose_bits.cuh"

namespace stoch::cuda {
namespace {

using tiles::ClosedLayout;
using tiles::kClosedBlocks;
using tiles::kClosedGroup;
using tiles::kHighWords;
using tiles::kStepWords;
using tiles::TransposeBits;

constexpr int kWarpDims = 8;  // dimensions of a warp, for 32 tokens
constexpr int kStageDims = kClosedBlocks * kTileDims;
static_assert(kStageDims == kTileFormDims);

struct OperandArgs {
  const ScTileEntry* entries = nullptr;
  int masks = 1;
  ScActivationView a;
  int stages = 0;  // of a chunk
  int scale_stride = 0;
  uint32_t* operands = nullptr;
  float* scales = nullptr;
};

// Block (x, y): stage x of all chunks for token tile y. A warp has kWarpDims dimensions of 32 tokens, a token a lane.
template <int kTokens>
__global__ void __launch_bounds__(kTokens* kStageDims / kWarpDims)
    ClosedOperandsKernel(const __grid_constant__ OperandArgs args) {
  using Layout = ClosedLayout<kTokens>;
  static_assert(Layout::kWords * 4 == kTokens * kTileFormTokenBytes);
  constexpr int kThreads = kTokens * kStageDims / kWarpDims;
  constexpr int kGroups = kTokens / kClosedGroup;
  __shared__ __align__(16) uint32_t out[Layout::kWords];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = warp % kGroups;
  const int first = warp / kGroups * kWarpDims;  // dimension of the stage
  const int block = first / kTileDims;
  const int chunk = static_cast<int>(blockIdx.x) / args.stages;
  const int stage = static_cast<int>(blockIdx.x) % args.stages;
  const int mine = group * kClosedGroup + lane;
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kTokens + mine;
  const ScDims& dims = args.a.dims;
  StartNext();
  WaitForPrevious();
  uint2 codes = make_uint2(0, 0);
  const int64_t dim = stage * kStageDims + first;  // of the chunk
  if (token < args.a.tokens && dim < dims.chunk_padded(chunk)) {
    codes = *reinterpret_cast<const uint2*>(args.a.codes + token * dims.padded + chunk * dims.chunk_stride + dim);
  }
#pragma unroll
  for (int half = 0; half < kWarpDims / 4; ++half) {
    const int quad = first % kTileDims / 4 + half;
    const uint32_t word = half == 0 ? codes.x : codes.y;
    uint32_t bits[4];
    uint32_t elements[3] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = word >> (8 * i) & 0xff;
      const int mask = static_cast<int>(dim + half * 4 + i) & (args.masks - 1);
      const uint2 entry = __ldg(reinterpret_cast<const uint2*>(args.entries) + mask * 256 + static_cast<int>(code));
      bits[i] = entry.x;
      elements[0] |= (entry.y >> 16 & 0xff) << (8 * i);
      elements[1] |= code >> 7 << (8 * i);
      elements[2] |= entry.y >> 24 << (8 * i);
      const uint32_t steps = TransposeBits((entry.x & 0xff) | entry.y << 8, lane);
      uint32_t* const to = out + Layout::kSteps + group * kStepWords;
      const int row = (block * 4 + i) * 4 + quad;
      if (lane < 8) to[row * 8 + lane] = steps;
      if (lane >= 8 && lane < 24) to[kHighWords + row * 16 + lane - 8] = steps;
    }
    reinterpret_cast<uint4*>(out)[(block * kTokens + mine) * 4 + quad] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
#pragma unroll
    for (int e = 0; e < 3; ++e) {
      const int place = block * 3 + e;
      out[Layout::kBitWords + ((place / 2 * kTokens + mine) * 4 + quad) * 2 + place % 2] = elements[e];
    }
  }
  __syncthreads();
  uint4* const to = reinterpret_cast<uint4*>(args.operands) +
                    (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * (Layout::kWords / 4);
  for (int i = static_cast<int>(threadIdx.x); i < Layout::kWords / 4; i += kThreads) {
    to[i] = reinterpret_cast<const uint4*>(out)[i];
  }
  if (stage == 0 && threadIdx.x < kTokens) {
    const int64_t row = static_cast<int64_t>(blockIdx.y) * kTokens + threadIdx.x;
    args.scales[static_cast<int64_t>(chunk) * args.scale_stride + row] =
        row < args.a.tokens ? args.a.scales[static_cast<int64_t>(chunk) * args.a.tokens + row] : 0.0f;
  }
}

}  // namespace

void LaunchClosedOperands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                          const ClosedOperands& out) {
  STOCH_CHECK(tables.tile_entries != nullptr);
  OperandArgs args;
  args.entries = tables.tile_entries;
  args.masks = tables.masks;
  args.a = a;
  args.stages = static_cast<int>((a.dims.chunk_stride + kStageDims - 1) / kStageDims);
  args.scale_stride = out.scale_stride;
  args.operands = reinterpret_cast<uint32_t*>(out.operands);
  args.scales = out.scales;
  const dim3 grid(static_cast<unsigned>(a.dims.chunks * args.stages),
                  static_cast<unsigned>((a.tokens + tile_tokens - 1) / tile_tokens));
  const auto kernel = tile_tokens == kTileTokensNarrow ? ClosedOperandsKernel<kTileTokensNarrow>
                                                       : ClosedOperandsKernel<kTileTokensWide>;
  const auto threads = static_cast<unsigned>(tile_tokens * kStageDims / kWarpDims);
  LaunchOverlapped(ctx, kernel, grid, dim3(threads), size_t{0}, args);
}

}  // namespace stoch::cuda
