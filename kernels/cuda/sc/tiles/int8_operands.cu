// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/sc/tiles/int8_form.cuh"
#include "kernels/cuda/sc/tiles/operands.cuh"
#include "kernels/cuda/sc/tiles/transpose_bits.cuh"

namespace stoch::cuda {
namespace {

using tiles::Int8Layout;
using tiles::kWarpDims;
using tiles::OperandLane;
using tiles::TransposeBits;

// Form of OperandsKernel: token operands of int8_form.cuh, for tiles of kOfTile tokens.
template <int kOfTile>
struct Int8Form {
  using Entry = ScInt8Entry;
  using Layout = Int8Layout<kOfTile>;
  static constexpr int kTokens = kOfTile;
  static constexpr int kStageDims = kTileInt8Dims;
  static constexpr int kWords = Layout::kWords;
  static_assert(kStageDims == kTileDims && kStageDims == 2 * kWarpDims);

  __device__ __forceinline__ static void Fill(const tiles::OperandArgs<Entry>& args, const OperandLane& at,
                                              uint32_t* out) {
    __shared__ uint32_t constants[kStageDims / kWarpDims][kTokens];
    uint32_t constant = 0;
#pragma unroll
    for (int w = 0; w < kWarpDims / 4; ++w) {
      const uint32_t word = w == 0 ? at.codes.x : at.codes.y;
      uint2 factors[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = at.first + w * 4 + i;
        const int mask = static_cast<int>(at.dim + w * 4 + i) & (args.masks - 1);
        const auto entry =
            __ldg(reinterpret_cast<const uint4*>(args.entries) + mask * 256 + static_cast<int>(word >> (8 * i) & 0xff));
        factors[i] = make_uint2(entry.x, entry.y);
        constant += entry.z >> (2 * kInt8Highs);
        const uint32_t high = TransposeBits(entry.z, at.lane);
        const uint32_t low = TransposeBits(entry.w, at.lane);
        if (at.lane < 2 * kInt8Highs) {
          const int h = at.lane % kInt8Highs;
          out[Layout::kHigh + d * Layout::kHighDimWords + h * Layout::kPairWords + at.group * 2 +
              at.lane / kInt8Highs] = high;
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
    constants[at.first / kWarpDims][at.mine] = constant;
    __syncthreads();
    if (threadIdx.x < kTokens / 2) {
      constexpr int kTiles = kTokens / kTileTokens;
      const int t = static_cast<int>(threadIdx.x) / kTiles;
      const int of = static_cast<int>(threadIdx.x) % kTiles * kTileTokens + t * 2;
      out[Layout::kConstants + threadIdx.x] =
          (constants[0][of] + constants[1][of]) | (constants[0][of + 1] + constants[1][of + 1]) << 16;
    }
  }
};

}  // namespace

void LaunchInt8Operands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                        const ClosedOperands& out) {
  STOCH_CHECK(tables.int8_entries != nullptr);
  const auto launch = tile_tokens == kTileTokensNarrow ? tiles::LaunchOperands<Int8Form<kTileTokensNarrow>>
                                                       : tiles::LaunchOperands<Int8Form<kTileTokensWide>>;
  launch(ctx, tables.int8_entries, tables.masks, a, out);
}

}  // namespace stoch::cuda
