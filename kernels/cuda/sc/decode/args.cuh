// SPDX-License-Identifier: Apache-2.0
// Arguments and template variants of the decode kernel (decode.cu), and the shape of its blocks.
#pragma once

#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/handover/row_channel.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda::decode {

// Block size and prefetch depth of the decode kernel for up to kTokens tokens. One token takes 16 warps, so that each
// thread has registers for many loads in flight. More tokens are bound by the rate of look-ups and take as many warps
// as the register file allows.
// Alternatives that lost: docs/tuning/decode.md.
template <int kTokens>
struct Cut {
  static constexpr int kWarps = kTokens == 1 ? 16 : 24;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kEarly = 4;  // weight tiles that a warp loads before it waits for the activations
  static constexpr int kRing = kTokens <= 2 ? 8 : 4;  // weight tiles that a warp has in flight
};
inline constexpr int kMaxFusedChunks = 2;                   // chunks that a block stages at a time, at most
inline constexpr int kChunkDims = 128;                      // dimensions of a chunk, at most
inline constexpr int kChunkTiles = kChunkDims / kTileDims;  // weight tiles (32 rows x 16 dimensions) of a full chunk
inline constexpr int kRowBytes = 128;                       // bytes of a row of the count table in shared memory
inline constexpr int kCombineChunks = kChunkDims;  // chunks whose products shared memory holds in the reduction
inline constexpr int kStageBytes = kChunkDims * kRowBytes;  // bytes of a chunk's table rows for one token

// Source of a launch's activations.
enum class InputKind : uint8_t {
  kCodes,   // codes in device memory, quantized by an earlier kernel
  kFloats,  // one row x of floats in device memory; every block quantizes f(x), f being the prologue
  kPolled,  // one row of floats, polled word by word while the previous kernel computes it (handover/row_channel.h)
};
// Destination of a launch's outputs.
enum class OutputKind : uint8_t {
  kMemory,  // floats in device memory
  // Floats in device memory, and also words that the next kernel polls (0: not written yet, handover/row_channel.h).
  // The kernel lets the next one start only after its own WaitForPrevious.
  kPosted,
  kShared,  // as kPosted, and posted to other GPUs, which compute parts of the row; a polled input may be such a row
};
// Template arguments of the decode kernel. top256: a count may be 256, which a byte table stores as 0. mixed: each row,
// or (row, chunk), has its own stream length. Variant is a type because nvcc 13.0 cannot name a kernel whose template
// argument is a value of class type.
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

// Divides 0 <= n < 2^31 by a fixed d with one multiplication: an integer division takes thirty instructions, which
// would delay the first load of a block.
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

// The dimension axis of ScDims in 32-bit integers.
struct DecodeDims {
  int dims = 0;         // dimensions, without padding
  int chunk_d = 0;      // dimensions of a chunk; the last may have fewer
  int chunks = 0;       // number of chunks
  int chunk_tiles = 0;  // weight tiles of a full chunk
  int row_tiles = 0;    // weight tiles of all chunks

  __device__ __forceinline__ int chunk_dims(int c) const { return min(chunk_d, dims - c * chunk_d); }
};

// One weight and the destination of its product. A row block is 32 weight rows; the row blocks of all tasks are
// numbered task by task.
struct Task {
  const uint8_t* codes = nullptr;  // [rows_padded / 32][row_tiles][32][16] codes of the weight
  const float* scales = nullptr;   // [chunks][rows_padded] scales of the weight rows
  int rows_padded = 0;             // weight rows, padded to a multiple of 64
  int first_block = 0;             // number of the task's first row block
  int rows = 0;                    // output features
  float* out = nullptr;            // output feature m of token n is out[n * out_stride + m]
  int64_t out_stride = 0;
};

// Arguments of the decode kernel. A unit is one chunk of one row block, a warp's work at a time. Parameters are read
// through a cache that is cold when a kernel starts, so members that are read early come first, next to each other.
struct DecodeArgs {
  int units_each = 0;  // units of a block, except the first units_rest blocks
  int units_rest = 0;  // the first units_rest blocks have units_each + 1 units
  int row_blocks = 0;  // row blocks of all tasks
  int staged = 1;      // chunks that a block stages at a time, at most kMaxFusedChunks
  Divisor by_row_blocks;
  int task_end[kMaxDecodeTasks] = {};  // number of each task's last row block + 1; INT_MAX past the last task
  DecodeDims dims;
  int tokens = 0;
  const float* x = nullptr;         // [dims] the row that blocks quantize; not read if `codes` are given
  const float* y = nullptr;         // [dims] norm weight (RMSNorm) or x2 (SiLU product) of that row; null: neither
  bool polls = false;               // true: x, and y if it is x2, are words that the previous kernel posts
  const uint8_t* counts = nullptr;  // [masks][levels][levels] ScTables::counts8; null in MixedDecodeArgs
  float norm_eps = 0;
  int masks = 1;
  int levels = 128;
  int q_max = 127;
  float gain = 0;
  Prologue prologue = Prologue::kNone;
  bool add = false;  // true: out = out + y; false: out = y
  // Split-K partials, [tokens][row_blocks][chunks][32 rows]: each row's scaled product in each chunk. If there is one
  // token and DeviceContext::words has room, they are `words`, posted one by one (0: not posted yet); else they are
  // `products`, floats that become visible at a grid barrier. The other pointer is null.
  uint32_t* words = nullptr;
  float* products = nullptr;
  // Where the kernel posts its outputs for the next kernel to poll; only with one token. [row_blocks][32] over all
  // tasks; if several GPUs share the row, the outputs of the launch's one task.
  RowPost post;
  GridBarrier barrier;
  SiteReporter reporter;
  Task tasks[kMaxDecodeTasks];
  const uint8_t* codes = nullptr;  // [tokens][row_tiles * 16] codes of the activations; null: blocks quantize x
  const float* scales = nullptr;   // [chunks][tokens] scales of `codes`
  PostPeers peers;                 // OutputKind::kShared: addresses of the row on other GPUs
  PeerWait wait;                   // OutputKind::kShared: time limit of polls for words from other GPUs
};

// Stream lengths of one task. Every row, or (row, chunk), has a slot, the index of its length; every slot has a count
// table.
struct TaskLengths {
  const ByteTable* tables = nullptr;  // [slots] count table of each length
  int slots = 0;                      // number of lengths
  int per_row = 1;                    // slots of a row: 1, or the number of chunks
  const uint8_t* of_rows = nullptr;   // [tokens][per_row] slots; null: slot 0
};
// Arguments of a launch in which each row, or (row, chunk), has its own stream length. A part is a chunk together with
// the tasks for which it is staged at once: all tasks if they share their lengths, else one task. Parts are staged one
// after another, each with the count tables of its lengths.
struct MixedDecodeArgs : DecodeArgs {
  int part_count = 0;                    // parts of a chunk
  int part_end[kMaxDecodeTasks] = {};    // number of each part's last row block + 1
  TaskLengths lengths[kMaxDecodeTasks];  // [part_count] lengths of each part
  // If blocks quantize the one row, they also pick its slots, by `rules`.
  bool of_row = false;                // some rule needs a metric of the whole row, not of a chunk
  bool needs_l2 = false;              // some metric of the row needs the sum of squares
  LengthView rules[kMaxDecodeTasks];  // [part_count] rule of each part
};

// The chunk that a part belongs to. Parts are numbered chunk by chunk; if all rows have one stream length, a chunk is
// one part.
__device__ __forceinline__ int ChunkOfPart(const DecodeArgs& /*args*/, int part) { return part; }
__device__ __forceinline__ int ChunkOfPart(const MixedDecodeArgs& args, int part) { return part / args.part_count; }

// Index of the task that a row block belongs to. For a number past the last row block it is the index of a task without
// rows, or of the last task.
__device__ __forceinline__ int TaskOf(const DecodeArgs& args, int row_block) {
  int t = 0;
#pragma unroll
  for (int i = 0; i + 1 < kMaxDecodeTasks; ++i) t += row_block >= args.task_end[i] ? 1 : 0;
  return t;
}

// The part, numbered within its chunk, that a row block belongs to.
__device__ __forceinline__ int PartOf(const MixedDecodeArgs& args, int row_block) {
  return args.part_count == 1 ? 0 : TaskOf(args, row_block);
}

}  // namespace stoch::cuda::decode
