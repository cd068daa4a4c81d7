// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/sc/tiles/closed_form.cuh"
#include "kernels/cuda/sc/tiles/operands.cuh"
#include "kernels/cuda/sc/tiles/transpose_bits.cuh"

namespace stoch::cuda {
namespace {

using tiles::ClosedLayout;
using tiles::kClosedBlocks;
using tiles::kHighWords;
using tiles::kStepWords;
using tiles::kWarpDims;
using tiles::OperandLane;
using tiles::TransposeBits;

// Form of OperandsKernel: token operands of closed_form.cuh, for tiles of kOfTile tokens.
template <int kOfTile>
struct ClosedForm {
  using Entry = ScTileEntry;
  using Layout = ClosedLayout<kOfTile>;
  static constexpr int kTokens = kOfTile;
  static constexpr int kStageDims = kClosedBlocks * kTileDims;
  static constexpr int kWords = Layout::kWords;
  static_assert(kStageDims == kTileFormDims && kWords * 4 == kTokens * kTileFormTokenBytes);

  __device__ __forceinline__ static void Fill(const tiles::OperandArgs<Entry>& args, const OperandLane& at,
                                              uint32_t* out) {
    const int block = at.first / kTileDims;
#pragma unroll
    for (int half = 0; half < kWarpDims / 4; ++half) {
      const int quad = at.first % kTileDims / 4 + half;
      const uint32_t word = half == 0 ? at.codes.x : at.codes.y;
      uint32_t bits[4];
      uint32_t elements[3] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t code = word >> (8 * i) & 0xff;
        const int mask = static_cast<int>(at.dim + half * 4 + i) & (args.masks - 1);
        const uint2 entry = __ldg(reinterpret_cast<const uint2*>(args.entries) + mask * 256 + static_cast<int>(code));
        bits[i] = entry.x;
        elements[0] |= (entry.y >> 16 & 0xff) << (8 * i);
        elements[1] |= code >> 7 << (8 * i);
        elements[2] |= entry.y >> 24 << (8 * i);
        const uint32_t steps = TransposeBits((entry.x & 0xff) | entry.y << 8, at.lane);
        uint32_t* const to = out + Layout::kSteps + at.group * kStepWords;
        const int row = (block * 4 + i) * 4 + quad;
        if (at.lane < 8) to[row * 8 + at.lane] = steps;
        if (at.lane >= 8 && at.lane < 24) to[kHighWords + row * 16 + at.lane - 8] = steps;
      }
      reinterpret_cast<uint4*>(out)[(block * kTokens + at.mine) * 4 + quad] =
          make_uint4(bits[0], bits[1], bits[2], bits[3]);
#pragma unroll
      for (int e = 0; e < 3; ++e) {
        const int place = block * 3 + e;
        out[Layout::kBitWords + ((place / 2 * kTokens + at.mine) * 4 + quad) * 2 + place % 2] = elements[e];
      }
    }
  }
};

}  // namespace

void LaunchClosedOperands(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, int tile_tokens,
                          const ClosedOperands& out) {
  STOCH_CHECK(tables.tile_entries != nullptr);
  const auto launch = tile_tokens == kTileTokensNarrow ? tiles::LaunchOperands<ClosedForm<kTileTokensNarrow>>
                                                       : tiles::LaunchOperands<ClosedForm<kTileTokensWide>>;
  launch(ctx, tables.tile_entries, tables.masks, a, out);
}

}  // namespace stoch::cuda
