// SPDX-License-Identifier: Apache-2.0
// The kernels of tiles without binary mma (int8_form.cuh). They have a file of their own because
// tests/kernels/cuda_code_test checks that its machine code has no binary mma.
#include "kernels/cuda/sc/tiles/int8_form.cuh"

namespace stoch::cuda::tiles {
namespace {

// Form of TilesKernel: the closed form in int8.
template <typename S>
struct Int8Form {
  using Shape = S;
  // Reserves kTileFlipBytes a warp, in which Int8FormBody::Flush transposes counters.
  __device__ static uint8_t* Fill(const TileArgs&, uint8_t* memory) { return memory + S::kWarps * kTileFlipBytes; }
  __device__ static auto MakeBody(const TileArgs&, uint8_t* memory) {
    return Int8FormBody<S>{SharedAddress(memory) + threadIdx.x / kWarp * kTileFlipBytes};
  }
};

}  // namespace

Kernel Int8Kernel(int tile_tokens, bool split) {
  if (tile_tokens == kTileTokensNarrow)
    return TilesKernel<Int8Form<Shape<kTileTokensNarrow, 16, kTileInt8Stages, true>>>;
  return split ? TilesKernel<Int8Form<Shape<kTileTokensWide, 8, kTileInt8Stages, true>>>
               : TilesKernel<Int8Form<Shape<kTileTokensWide, 8, kTileInt8Stages, false>>>;
}

}  // namespace stoch::cuda::tiles
