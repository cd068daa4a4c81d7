// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tiles/closed_operands.h"
#include "kernels/cuda/sc/tiles/int8_form.cuh"
#include "kernels/cuda/sc/tiles/transpose_bits.cuh"

namespace stoch::cuda {
namespace {

using tiles::Int8Layout;
using tiles::TransposeBits;

constexpr int kWarpDims = 8;  // dimensions of a warp, for 32 tokens
constexpr int kStageDims = kTileInt8Dims;
static_assert(kStageDims == kTileDims);

struct OperandArgs {
  const ScInt8Entry* entries = nullptr;
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
    Int8OperandsKernel(const __grid_constant__ OperandArgs args) {
  using Layout = Int8Layout<kTokens>;
  constexpr int kThreads = kTokens * kStageDims / kWarpDims;
  constexpr int kHalves = kStageDims / kWarpDims;
  __shared__ __align__(16) uint32_t out[Layout::kWords];
  __shared__ uint32_t constants[kHalves][kTokens];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = warp % Layout::kGroups;
  const int half = warp / Layout::kGroups;
  const int first = half * kWarpDims;  // dimension of the stage
  const int chunk = static_cast<int>(blockIdx.x) / args.stages;
  const int stage = static_cast<int>(blockIdx.x) % args.stages;
  const int mine = group * 32 + lane;
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kTokens + mine;
  const ScDims& dims = args.a.dims;
  StartNext();
  WaitForPrevious();
  uint2 codes = make_uint2(0, 0);
  const int64_t dim = stage * kStageDims + first;  // of the chunk
  if (token < args.a.tokens && dim < dims.chunk_padded(chunk)) {
    codes = *reinterpret_cast<const uint2*>(args.a.codes + token * dims.padded + chunk * dims.chunk_stride + dim);
  }
  uint32_t constant = 0;
#pragma unroll
  for (int w = 0; w < kWarpDims / 4; ++w) {
    const uint32_t word = w == 0 ? codes.x : codes.y;
    uint2 factors[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = first + w * 4 + i;
      const int mask = static_cast<int>(dim + w * 4 + i) & (args.masks - 1);
      const auto entry =
          __ldg(reinterpret_cast<const uint4*>(args.entries) + mask * 256 + static_cast<int>(word >> (8 * i) & 0xff));
      factors[i] = make_uint2(entry.x, entry.y);
      constant += entry.z >> (2 * kInt8Highs);
      const uint32_t high = TransposeBits(entry.z, lane);
      const uint32_t low = TransposeBits(entry.w, lane);
      if (lane < 2 * kInt8Highs) {
        const int h = lane % kInt8Highs;
        out[Layout::kHigh + d * Layout::kHighDimWords + h * Layout::kPairWords + group * 2 + lane / kInt8Highs] = high;
      }
      const int l = lane % kInt8Lows;
      out[Layout::kLow + d * Layout::kLowDimWords + (group * kInt8Lows + l) * 2 + lane / kInt8Lows] = low;
    }
    // Byte e of four dimensions to the four bytes of element e.
    const int quad = first / 4 + w;
#pragma unroll
    for (int y = 0; y < 2; ++y) {
      uint32_t from[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) from[i] = y == 0 ? factors[i].x : factors[i].y;
      const uint32_t low01 = __byte_perm(from[0], from[1], 0x5140), low23 = __byte_perm(from[2], from[3], 0x5140);
      const uint32_t high01 = __byte_perm(from[0], from[1], 0x7362), high23 = __byte_perm(from[2], from[3], 0x7362);
      reinterpret_cast<uint4*>(out)[(y * kTokens + mine) * 4 + quad] =
          make_uint4(__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                     __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632));
    }
  }
  constants[half][mine] = constant;
  __syncthreads();
  if (threadIdx.x < kTokens / 2) {
    constexpr int kTiles = kTokens / kTileTokens;
    const int t = static_cast<int>(threadIdx.x) / kTiles;
    const int of = static_cast<int>(threadIdx.x) % kTiles * kTileTokens + t * 2;
    out[Layout::kConstants + threadIdx.x] =
        (constants[0][of] + constants[1][of]) | (constants[0][of + 1] + constants[1][of + 1]) << 16;
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

void LaunchInt8Operands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                        const ClosedOperands& out) {
  STOCH_CHECK(tables.int8_entries != nullptr);
  OperandArgs args;
  args.entries = tables.int8_entries;
  args.masks = tables.masks;
  args.a = a;
  args.stages = static_cast<int>((a.dims.chunk_stride + kStageDims - 1) / kStageDims);
  args.scale_stride = out.scale_stride;
  args.operands = reinterpret_cast<uint32_t*>(out.operands);
  args.scales = out.scales;
  const dim3 grid(static_cast<unsigned>(a.dims.chunks * args.stages),
                  static_cast<unsigned>((a.tokens + tile_tokens - 1) / tile_tokens));
  const auto kernel =
      tile_tokens == kTileTokensNarrow ? Int8OperandsKernel<kTileTokensNarrow> : Int8OperandsKernel<kTileTokensWide>;
  const auto threads = static_cast<unsigned>(tile_tokens * kStageDims / kWarpDims);
  LaunchOverlapped(ctx, kernel, grid, dim3(threads), size_t{0}, args);
}

}  // namespace stoch::cuda
