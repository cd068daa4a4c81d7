// SPDX-License-Identifier: Apache-2.0
// Writes the outputs of wide tiles: adds the listed codes, which the products left out, to the sums of p v, and scales.
#include "kernels/cuda/attention/hopper/wide.h"
#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

// Rows per block, one warp each. The values of listed codes are scattered in memory, so many warps are needed to hide
// latency.
constexpr int kOutputRows = 8;

// Adds p v of a row's listed codes (WideArgs::lists) to `sums`, for the four dimensions from `dim` on. row: row index
// in the scratch; packed: index, in v_codes, of the sequence's position 0.
__device__ __forceinline__ void AddListed(const WideArgs& args, int64_t row, int64_t packed, int dim,
                                          int32_t (&sums)[4]) {
  const int head_dim = args.attention.kv.head_dim;
  const uint32_t* const list = args.lists + row * kWideListed;
  const uint8_t* const codes = args.v_codes + packed * head_dim + dim;
  const int count = args.listed[row];
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const uint32_t listed = __ldg(list + i);
    const auto t = static_cast<int64_t>(listed >> 8);
    const uint32_t four = __ldg(reinterpret_cast<const uint32_t*>(codes + t * head_dim));
    const auto mask = static_cast<int>(t) & (args.av.masks - 1);
    const uint8_t* const counts = args.av.counts8 + (mask * args.av.levels + (listed & 0xff)) * args.av.levels;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto count_of = static_cast<int32_t>(__ldg(counts + (four >> (8 * j) & 0x7f)));
      sums[j] += (four >> (8 * j) & 0x80) != 0 ? -count_of : count_of;
    }
  }
}

// Scales sums of p v, with the listed codes added, and writes them to attention.out. Launched with a block per (head of
// the round, tile, kOutputRows rows): a warp takes a row, a lane four dimensions.
__global__ void __launch_bounds__(kOutputRows * 32) WideOutputsKernel(const WideArgs args) {
  const AttentionArgs& a = args.attention;
  const QueryTile tile = args.tiles[blockIdx.y];
  const int round_head = static_cast<int>(blockIdx.x);
  const int head_dim = a.kv.head_dim;
  const int64_t first_row = args.FirstRow(static_cast<int>(blockIdx.y), round_head);
  const int64_t head = args.first_kv_head * a.group + round_head;
  const int64_t packed = args.FirstPosition(round_head / a.group, tile);
  const int dim = static_cast<int>(threadIdx.x % 32) * 4;
  const int row = static_cast<int>(blockIdx.z) * kOutputRows + static_cast<int>(threadIdx.x / 32);
  if (row >= tile.num_rows || dim >= head_dim) return;
  const int4 of_words = *reinterpret_cast<const int4*>(args.sums + (first_row + row) * head_dim + dim);
  int32_t sums[4] = {of_words.x, of_words.y, of_words.z, of_words.w};
  if (args.lists != nullptr) AddListed(args, first_row + row, packed, dim, sums);
  float gain = args.av.gain;
  if (args.is_mixed) {
    gain = args.lengths.av_ranks[args.lengths.p_slots[int64_t{tile.first_row + row} * a.num_heads + head]].gain;
  }
  float* const to = a.out + (tile.first_row + row) * a.out_stride + head * head_dim + dim;
#pragma unroll
  for (int j = 0; j < 4; ++j) to[j] = (static_cast<float>(sums[j]) * gain) * args.p_scales[first_row + row];
}

}  // namespace

void LaunchWideOutputs(DeviceContext& ctx, const WideArgs& args) {
  const dim3 grid(static_cast<unsigned>(args.kv_heads * args.attention.group), static_cast<unsigned>(args.num_tiles),
                  kQueryTile / kOutputRows);
  WideOutputsKernel<<<grid, kOutputRows * 32, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("WideOutputsKernel");
}

}  // namespace stoch::cuda
