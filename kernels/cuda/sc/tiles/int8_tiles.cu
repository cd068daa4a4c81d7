// SPDX-License-Identifier: Apache-2.0
// Tiles by the closed form without binary products, in a file of their own: tests/kernels/cuda_code_test looks for such
// products in what it is compiled to.
#include "kernels/cuda/sc/tiles/int8_form.cuh"

namespace stoch::cuda::tiles {
namespace {

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) Int8TilesKernel(const __grid_constant__ TileArgs args) {
  extern __shared__ __align__(256) uint8_t memory[];  // where counters change places, then the ring
  StartNext();
  Int8FormBody<S> body{SharedAddress(memory) + threadIdx.x / kWarp * kTileFlipBytes};
  RunKernel<S>(args, memory, memory + S::kWarps * kTileFlipBytes, body);
}

}  // namespace

Kernel Int8Kernel(int tile_tokens, bool split) {
  if (tile_tokens == kTileTokensNarrow) return Int8TilesKernel<Shape<kTileTokensNarrow, 16, kTileInt8Stages, true>>;
  return split ? Int8TilesKernel<Shape<kTileTokensWide, 8, kTileInt8Stages, true>>
               : Int8TilesKernel<Shape<kTileTokensWide, 8, kTileInt8Stages, false>>;
}

}  // namespace stoch::cuda::tiles
