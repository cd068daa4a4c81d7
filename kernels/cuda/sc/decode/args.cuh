// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernel, its variants, and how its blocks are cut.
#pragma once

#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/handover/row_channel.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda::decode {

// How a block is cut for a number of tokens. One token: 16 warps with registers for many lookups in flight. More tokens:
// bound by the rate of lookups, as many warps as there are registers for.
// Alternatives that lost: docs/tuning/decode.md.
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

// Where the rows of a launch come from, and where its outputs go.
enum class InputKind : uint8_t {
  kCodes,   // memory: a kernel before quantizes them
  kFloats,  // memory: the kernel quantizes f(x) of the one row
  kPolled,  // the same where the kernel before posts the row word by word (handover/row_channel.h)
};
enum class OutputKind : uint8_t {
  kMemory,
  kPosted,  // posted word by word, too; the next kernel starts after the wait, not before
  kShared,  // the same of a row that several GPUs make, which a polled one may be
};
// A kernel of decode.cu. top256: a count may be 256. mixed: rows have lengths of their own. A type: nvcc 13.0 cannot name a
// kernel whose template argument is a value of class type.
template <int tokens, InputKind input, OutputKind output, bool top256, bool mixed = false>
struct Variant {
  static constexpr int kTokens = tokens;
  static constexpr bool kTop256 = top256;
  static constexpr bool kMixed = mixed;
  static constexpr bool kFused = input != InputKind::kCodes;
  static constexpr bool kPolls = input == InputKind::kPolled;
  static constexpr bool kPosts = output != OutputKind::kMemory;
  static constexpr bool kShares = output == OutputKind::kShared;
  static_assert(!(kFused && kMixed) || kTokens == 1);
  static_assert(!kPosts || (kFused && !kMixed));
  static_assert(!kPolls || kPosts);
};

// n / d for 0 <= n < 2^31 by a multiplication: a division is thirty instructions in front of everything.
struct Divisor {
  uint32_t multiplier = 0;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int d) : shift(31) {
    while (int64_t{1} << (shift - 31) < d) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + static_cast<uint64_t>(d) - 1) / d);
  }
  __device__ __forceinline__ int Quotient(int n) const {
    return static_cast<int>((static_cast<uint64_t>(multiplier) * static_cast<uint32_t>(n)) >> shift);
  }
};

// Bipolar dimensions as in ScDims, in 32 bits.
struct DecodeDims {
  int dims = 0;
  int chunk_d = 0;
  int chunks = 0;
  int chunk_tiles = 0;  // of a whole chunk
  int row_tiles = 0;    // of all chunks

  __device__ __forceinline__ int chunk_dims(int c) const { return min(chunk_d, dims - c * chunk_d); }
};

struct Task {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  int rows_padded = 0;
  int first_block = 0;  // of its row blocks (32 rows) among those of all tasks
  int rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Kernel parameters are read through a cache that is cold when a kernel starts: what is read early is together.
struct DecodeArgs {
  int units_each = 0;  // of a block
  int units_rest = 0;  // the first blocks have one more
  int row_blocks = 0;  // of all tasks
  int staged = 1;      // chunks that a block stages at a time
  Divisor by_row_blocks;
  int task_end[kMaxDecodeTasks] = {};  // its last row block + 1; of no task: none
  DecodeDims dims;
  int tokens = 0;
  const float* x = nullptr;  // the one row that is quantized here; not read where there are codes
  const float* y = nullptr;  // its norm weight or x2
  bool polls = false;        // x, and x2, are words that the kernel in front posts (handover/row_channel.h)
  const uint8_t* counts = nullptr;
  float norm_eps = 0;
  int masks = 1;
  int levels = 128;
  int q_max = 127;
  float gain = 0;
  Prologue prologue = Prologue::kNone;
  bool add = false;  // to what is in the outputs
  // [tokens][row_blocks][chunks][32] products: of one token words that are posted, where DeviceContext::words has room
  // for them, otherwise floats that a barrier makes visible.
  uint32_t* words = nullptr;
  float* products = nullptr;
  RowPost post;  // one token: outputs for the next kernel, [row_blocks][32] or those of the one task of a shared row
  GridBarrier barrier;
  SiteReporter reporter;
  Task tasks[kMaxDecodeTasks];
  const uint8_t* codes = nullptr;  // [tokens][row_tiles * 16]
  const float* scales = nullptr;   // [chunks][tokens]
  // Kernels that share rows with other GPUs:
  PostPeers peers;
  PeerWait wait;  // of what is polled
};

// Streams of several lengths: every (row, chunk) of a task has a slot, and that a table.
struct TaskLengths {
  const ByteTable* tables = nullptr;  // [slots]
  int slots = 0;
  int per_row = 1;                   // 1 or the number of chunks
  const uint8_t* of_rows = nullptr;  // [tokens][per_row]; null: slot 0
};
struct MixedDecodeArgs : DecodeArgs {
  // Parts of a chunk, each staged apart: one for all tasks, which then have the lengths and rules of the first, or one each.
  int part_count = 0;
  int part_end[kMaxDecodeTasks] = {};  // its last row block + 1
  TaskLengths lengths[kMaxDecodeTasks];
  // Where the one row is quantized here: its slots too, by these rules.
  bool of_row = false;  // some rule wants a metric of the whole row
  bool needs_l2 = false;
  LengthView rules[kMaxDecodeTasks];
};

// The chunk of a part: where rows have lengths of their own, a chunk may have one for every task.
__device__ __forceinline__ int ChunkOfPart(const DecodeArgs& /*args*/, int part) { return part; }
__device__ __forceinline__ int ChunkOfPart(const MixedDecodeArgs& args, int part) { return part / args.part_count; }

// Behind the last row block: a task without rows, or the last one.
__device__ __forceinline__ int TaskOf(const DecodeArgs& args, int row_block) {
  int t = 0;
#pragma unroll
  for (int i = 0; i + 1 < kMaxDecodeTasks; ++i) t += row_block >= args.task_end[i] ? 1 : 0;
  return t;
}

// The part of a chunk that a row block belongs to.
__device__ __forceinline__ int PartOf(const MixedDecodeArgs& args, int row_block) {
  return args.part_count == 1 ? 0 : TaskOf(args, row_block);
}

}  // namespace stoch::cuda::decode
