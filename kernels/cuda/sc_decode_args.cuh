// What the decode kernel is launched with and how its blocks are cut.
#pragma once

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/grid_barrier.cuh"
#include "kernels/cuda/sc_decode.h"

namespace stoch::cuda::decode {

// How a block is cut for a number of tokens. One token: 16 warps with registers for many lookups in flight (measured on
// an H200: faster than 12 or 24 warps of 80 registers, than copies through shared memory, and than half as many
// registers, with which the next kernel's blocks could wait beside these). More tokens: bound by the rate of lookups,
// as many warps as there are registers for.
template <int kTokens>
struct Cut {
  static constexpr int kWarps = kTokens == 1 ? 16 : 24;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kEarly = 4;                    // of a lane's tiles, before the activations are there
  static constexpr int kRing = kTokens <= 2 ? 8 : 4;  // tiles in flight of a lane
};
inline constexpr int kMaxFusedChunks = 2;  // chunks of the one row that a block quantizes and stages at a time
inline constexpr int kChunkDims = 128;     // most dimensions of a chunk
inline constexpr int kChunkTiles = kChunkDims / kTileDims;  // tiles of 32 rows x 16 dimensions
inline constexpr int kRowBytes = 128;                       // of a staged table row
inline constexpr int kCombineChunks = kChunkDims;           // products of an item in shared memory at a time
inline constexpr int kStageBytes = kChunkDims * kRowBytes;  // of a token's staged chunk

struct Task {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int rows_padded = 0;
  int first_block = 0;  // of its row blocks (32 rows) among those of all tasks
  bool add = false;
};

struct DecodeArgs {
  Task tasks[kMaxDecodeTasks];
  int task_count = 0;
  ScDims dims;
  int tokens = 0;
  int row_blocks = 0;  // of all tasks
  int staged = 1;      // chunks that a block stages at a time
  const uint8_t* counts = nullptr;
  int masks = 1;
  int levels = 128;
  int q_max = 127;
  float gain = 0;
  ScActivationView a;  // codes == nullptr: quantized here from source
  RowSource source;
  FiniteReporter reporter;
  float* products = nullptr;  // [tokens][chunks][row_blocks * 32]
  GridBarrier barrier;
};

__device__ __forceinline__ const Task& TaskOf(const DecodeArgs& args, int row_block) {
  int t = 0;
  while (t + 1 < args.task_count && row_block >= args.tasks[t + 1].first_block) ++t;
  return args.tasks[t];
}

}  // namespace stoch::cuda::decode
