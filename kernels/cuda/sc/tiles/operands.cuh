// SPDX-License-Identifier: Apache-2.0
// The kernel template that makes token operands of tiles from codes, for both closed forms (closed_operands.cu,
// int8_operands.cu).
#pragma once

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tiles/closed_operands.h"
#include "kernels/cuda/sc/tiles/operand_lane.cuh"

namespace stoch::cuda::tiles {

template <typename Entry>
struct OperandArgs {
  const Entry* entries = nullptr;  // [masks][256 codes]: bits and factors of an activation code
  int masks = 1;
  ScActivationView a;
  int stages = 0;                // stages of a chunk
  int scale_stride = 0;          // tokens of all tiles, padding included
  uint32_t* operands = nullptr;  // [token tiles][chunks][stages][Form::kWords] output
  float* scales = nullptr;       // [chunks][scale_stride], 0 for padding tokens
};

// Writes the token operands of one stage. Block (x, y) takes stage x % stages of chunk x / stages for token tile y; the
// first stage of a chunk also writes the tile's scales.
// Form has the type Entry, the constants kTokens (tokens of a tile), kStageDims (dimensions of a stage) and kWords
// (words of a stage), and Fill(args, lane, out), which writes the stage to shared memory by all threads.
template <typename Form>
__global__ void __launch_bounds__(Form::kTokens* Form::kStageDims / kWarpDims)
    OperandsKernel(const __grid_constant__ OperandArgs<typename Form::Entry> args) {
  constexpr int kThreads = Form::kTokens * Form::kStageDims / kWarpDims;
  __shared__ __align__(16) uint32_t out[Form::kWords];
  const int chunk = static_cast<int>(blockIdx.x) / args.stages;
  const int stage = static_cast<int>(blockIdx.x) % args.stages;
  OperandLane lane = OperandLaneOf<Form::kTokens>(static_cast<int>(threadIdx.x), int64_t{stage} * Form::kStageDims);
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
