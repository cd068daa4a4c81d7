// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/sc/tiles/int8_operands.cuh"
#include "kernels/cuda/sc/tiles/operands.cuh"

namespace stoch::cuda {
namespace {

using tiles::OperandLane;

// Form of OperandsKernel: token operands of int8_form.cuh, for tiles of kOfTile tokens.
template <int kOfTile>
struct Int8Form {
  using Entry = ScInt8Entry;
  static constexpr int kTokens = kOfTile;
  static constexpr int kStageDims = kTileInt8Dims;
  static constexpr int kWords = tiles::Int8Layout<kTokens>::kWords;

  __device__ __forceinline__ static void Fill(const tiles::OperandArgs<Entry>& args, const OperandLane& at,
                                              uint32_t* out) {
    __shared__ uint32_t constants[tiles::kInt8ConstantWords<kTokens>];
    tiles::FillInt8Stage<kTokens>(args.entries, args.masks, at, static_cast<int>(threadIdx.x), constants, out);
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
