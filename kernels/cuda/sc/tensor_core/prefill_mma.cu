// SPDX-License-Identifier: Apache-2.0
// SC linear on binary mma.sync (sm_80 and newer): the same operands as prefill_wgmma.cu, without shared memory.
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/cuda/sc/tensor_core/prefill_kernels.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kColumns = 32;  // tokens of a warp; 16 weight rows
constexpr int kTiles = kColumns / 8;

// Ranks within one half of four codes of dimensions first..first+3 of a chunk.
__device__ __forceinline__ PackedRanks LoadRanks(const PrefillArgs& args, uint32_t codes, int first, int before,
                                                 int top) {
  uint32_t packed = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int level = static_cast<int>((codes >> (8 * j)) & 0x7f);
    const int rank = __ldg(args.ranks + ((first + j) & (args.masks - 1)) * args.levels + level);
    packed |= static_cast<uint32_t>(min(max(rank - before, 0), top)) << (8 * j);
  }
  return {packed};
}

template <int kWords>
__global__ void __launch_bounds__(kWarps * 32) PrefillMmaKernel(const __grid_constant__ PrefillArgs args) {
  const ScStreams& s = args.streams;
  const ScKernelTask& task = args.tasks[blockIdx.z];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quad = lane % 4;
  const int row_base = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * 16;
  if (row_base >= task.rows_padded) return;
  const int row = row_base + lane / 4;
  const int first_token = static_cast<int>(blockIdx.y) * kColumns;
  const int unit_words = s.tile_tokens * 4;
  const uint32_t* stream =
      reinterpret_cast<const uint32_t*>(s.data + s.block_offset(first_token / s.tile_tokens, 0, 0)) +
      (first_token % s.tile_tokens + lane / 4) * 4 + quad;
  const uint32_t* codes =
      reinterpret_cast<const uint32_t*>(task.codes + static_cast<int64_t>(row / kTileRows) * s.dim_blocks * kTileBytes +
                                        row % kTileRows * kTileDims + quad * 4);
  float y[kTiles][4] = {};
  for (int chunk = 0; chunk < s.chunks; ++chunk) {
    int32_t acc[kTiles][4] = {};
    const int begin = chunk * s.blocks_per_chunk;
    const int end = min(begin + s.blocks_per_chunk, s.dim_blocks);
    for (int block = begin; block < end; ++block) {
      const uint32_t two_codes[2] = {__ldg(codes), __ldg(codes + 8 * kTileDims / 4)};
      codes += kTileBytes / 4;
      for (int half = 0; half < s.halves; ++half) {
        PackedRanks ranks[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ranks[i] = args.ranks == nullptr ? DirectRanks<kWords>(two_codes[i], block - begin)
                                           : LoadRanks(args, two_codes[i], (block - begin) * 16 + quad * 4,
                                                       half * kWords * 32, kWords * 32);
        }
        Unrolled<2 * kWords>([&](auto step) {
          uint32_t a[4];
          StepOperand<kWords, step>(a, two_codes, ranks, args.minus_one);
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            const uint32_t* from = stream + 2 * step * unit_words + n * 32;
            MmaBits(acc[n], a, __ldg(from), __ldg(from + unit_words));
          }
        });
        uint32_t a[4];
        CorrectionOperand(a, two_codes, ranks);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint32_t* from = stream + 4 * kWords * unit_words + n * 32;
          MmaBytes(acc[n], a, __ldg(from), __ldg(from + unit_words));
        }
        stream += s.units() * unit_words;
      }
    }
    const float* row_scales = task.scales + static_cast<int64_t>(chunk) * task.rows_padded + row;
    const float scale0 = __ldg(row_scales), scale1 = __ldg(row_scales + 8);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float* token_scales =
          s.scales + static_cast<int64_t>(chunk) * s.tokens_padded() + first_token + n * 8 + quad * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = __fmul_rn(__ldg(token_scales + i % 2), i < 2 ? scale0 : scale1);
        y[n][i] = __fadd_rn(y[n][i], __fmul_rn(__fmul_rn(static_cast<float>(acc[n][i]), args.gain), scale));
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + n * 8 + quad * 2 + i % 2;
      const int out_row = row + i / 2 * 8;
      if (token < s.tokens && out_row < task.rows) {
        float* to = task.out + token * task.out_stride + out_row;
        *to = task.add ? __fadd_rn(*to, y[n][i]) : y[n][i];
      }
    }
  }
}

}  // namespace

void LaunchPrefillMma(cudaStream_t stream, const PrefillArgs& args) {
  int rows = 0;
  for (int i = 0; i < args.task_count; ++i) rows = args.tasks[i].rows_padded > rows ? args.tasks[i].rows_padded : rows;
  const dim3 grid(static_cast<unsigned>((rows + 16 * kWarps - 1) / (16 * kWarps)),
                  static_cast<unsigned>((args.streams.tokens + kColumns - 1) / kColumns),
                  static_cast<unsigned>(args.task_count));
  switch (args.streams.words) {
    case 1: PrefillMmaKernel<1><<<grid, kWarps * 32, 0, stream>>>(args); break;
    case 2: PrefillMmaKernel<2><<<grid, kWarps * 32, 0, stream>>>(args); break;
    case 3: PrefillMmaKernel<3><<<grid, kWarps * 32, 0, stream>>>(args); break;
    default: PrefillMmaKernel<4><<<grid, kWarps * 32, 0, stream>>>(args); break;
  }
  STOCH_CUDA_LAUNCH("PrefillMmaKernel");
}

}  // namespace stoch::cuda
