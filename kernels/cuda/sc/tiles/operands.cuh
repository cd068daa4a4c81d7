// SPDX-License-Identifier: Apache-2.0
// Operands of tiles from codes: the frame that the closed forms share.
#pragma once

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tiles/closed_operands.h"

namespace stoch::cuda::tiles {

inline constexpr int kWarpDims = 8;  // dimensions of a warp, for 32 tokens

template <typename Entry>
struct OperandArgs {
  const Entry* entries = nullptr;  // [masks][256]
  int masks = 1;
  ScActivationView a;
  int stages = 0;  // of a chunk
  int scale_stride = 0;
  uint32_t* operands = nullptr;
  float* scales = nullptr;
};

// A lane of OperandsKernel: kWarpDims dimensions of one token of the tile.
struct OperandLane {
  int lane = 0;
  int group = 0;    // of 32 tokens
  int first = 0;    // dimension of the stage
  int mine = 0;     // token of the tile
  int64_t dim = 0;  // `first` in the chunk
  uint2 codes = {};
};

// Block (x, y): stage x of all chunks for token tile y. Form has kTokens of a tile, kStageDims, kWords that a stage takes,
// and Fill(args, lane, out), which writes them to shared memory; a barrier follows.
template <typename Form>
__global__ void __launch_bounds__(Form::kTokens* Form::kStageDims / kWarpDims)
    OperandsKernel(const __grid_constant__ OperandArgs<typename Form::Entry> args) {
  constexpr int kThreads = Form::kTokens * Form::kStageDims / kWarpDims;
  constexpr int kGroups = Form::kTokens / kWarp;
  __shared__ __align__(16) uint32_t out[Form::kWords];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int chunk = static_cast<int>(blockIdx.x) / args.stages;
  const int stage = static_cast<int>(blockIdx.x) % args.stages;
  OperandLane lane;
  lane.lane = static_cast<int>(threadIdx.x) % kWarp;
  lane.group = warp % kGroups;
  lane.first = warp / kGroups * kWarpDims;
  lane.mine = lane.group * kWarp + lane.lane;
  lane.dim = stage * Form::kStageDims + lane.first;
  const int64_t token = static_cast<int64_t>(blockIdx.y) * Form::kTokens + lane.mine;
  const ScDims& dims = args.a.dims;
  StartNext();
  WaitForPrevious();
  if (token < args.a.tokens && lane.dim < dims.chunk_padded(chunk)) {
    lane.codes =
        *reinterpret_cast<const uint2*>(args.a.codes + token * dims.padded + chunk * dims.chunk_stride + lane.dim);
  }
  Form::Fill(args, lane, out);
  __syncthreads();
  uint4* const to = reinterpret_cast<uint4*>(args.operands) +
                    (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * (Form::kWords / 4);
  for (int i = static_cast<int>(threadIdx.x); i < Form::kWords / 4; i += kThreads) {
    to[i] = reinterpret_cast<const uint4*>(out)[i];
  }
  if (stage == 0 && threadIdx.x < Form::kTokens) {
    const int64_t row = static_cast<int64_t>(blockIdx.y) * Form::kTokens + threadIdx.x;
    args.scales[static_cast<int64_t>(chunk) * args.scale_stride + row] =
        row < args.a.tokens ? args.a.scales[static_cast<int64_t>(chunk) * args.a.tokens + row] : 0.0f;
  }
}

template <typename Form>
void LaunchOperands(DeviceContext& ctx, const typename Form::Entry* entries, int masks, const ScActivationView& a,
                    const ClosedOperands& out) {
  OperandArgs<typename Form::Entry> args;
  args.entries = entries;
  args.masks = masks;
  args.a = a;
  args.stages = static_cast<int>((a.dims.chunk_stride + Form::kStageDims - 1) / Form::kStageDims);
  args.scale_stride = out.scale_stride;
  args.operands = reinterpret_cast<uint32_t*>(out.operands);
  args.scales = out.scales;
  const dim3 grid(static_cast<unsigned>(a.dims.chunks * args.stages),
                  static_cast<unsigned>((a.tokens + Form::kTokens - 1) / Form::kTokens));
  LaunchOverlapped(ctx, &OperandsKernel<Form>, grid,
                   dim3(static_cast<unsigned>(Form::kTokens * Form::kStageDims / kWarpDims)), size_t{0}, args);
}

}  // namespace stoch::cuda::tiles
