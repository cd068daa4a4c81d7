// SPDX-License-Identifier: Apache-2.0
// Single rows whose contexts are cut over the whole GPU (attention/split): which kernels, how many blocks, how much
// shared memory.
#pragma once

#include <cstdint>

#include "kernels/plan/attention/shape.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch {

enum class SplitKernel : uint8_t {
  kNone,         // streams or heads that none is built for, or a device without room for them
  kLookup,       // resident_lookup.cu: resident blocks, q k by look-ups
  kLookupWords,  // the same, with p v by first words of streams
  kResident,     // resident.cu: blocks that are all on the GPU at once, q k by binary tensor cores
  kParts,        // scores.cu, softmax.cu, values.cu (fp32: exact.cu): a kernel for each step
};
enum class SplitSoftmax : uint8_t {
  kOneBlock,  // one block for every row
  kByParts,   // a kernel for the weights of rows longer than kSplitSoloUnits
};

struct SplitPlan {
  SplitKernel kernel = SplitKernel::kNone;
  SplitSoftmax softmax = SplitSoftmax::kByParts;
  int block_heads = 1;  // query heads of a KV head that a block takes
  int head_blocks = 1;  // blocks that take them all
  // kParts: the blocks of a launch find their work themselves.
  int score_blocks = 1;
  int value_blocks = 1;
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
  // Resident kernels.
  int blocks = 0;     // that the rows of a launch share, at most kSplitResidentRanks a row and its heads
  int positions = 0;  // whose scores a block keeps in shared memory, a multiple of kSplitResidentStep
  int masks = 0;      // whose streams of weights are in shared memory
  int64_t shared_bytes = 0;
};
// Rows of at most max_length positions, which one launch takes together.
SplitPlan PlanSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);
// As PlanSplit, with kParts the only choice: for rows whose positions are dealt over devices.
SplitPlan PlanSplitParts(const GpuTraits& gpu, const AttentionShape& shape, int64_t max_length);

// Whether blocks wait for each other, and so must all be on the GPU at once.
constexpr bool IsResident(SplitKernel kernel) {
  return kernel == SplitKernel::kResident || kernel == SplitKernel::kLookup || kernel == SplitKernel::kLookupWords;
}

// Counts of p v of so many rows at a time: of heads, or of blocks of a resident kernel.
int64_t SplitSums(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows);

inline constexpr int kSplitScHeads = 8;         // query heads of a block: columns of a tile
inline constexpr int kSplitExactHeads = 4;      // the same in fp32
inline constexpr int kSplitResidentRanks = 16;  // blocks of a row and its heads in a resident kernel, at most
inline constexpr int kSplitResidentRows = 32;   // rows that find their blocks themselves
inline constexpr int kSplitResidentThreads = 512;
inline constexpr int kSplitResidentStep = 32;           // positions
inline constexpr int kSplitResidentPad = 16;            // floats between heads, which are then in different banks
inline constexpr int kSplitUnit = 256;                  // positions: contexts are cut at multiples of it
inline constexpr int64_t kSplitOneBlockSoftmax = 4096;  // contexts whose softmax one block does
inline constexpr int kSplitSoloUnits = 8;               // units of a row whose softmax one block does
inline constexpr int kSplitWeightUnits = 8;             // units of a part of a longer row's weights
inline constexpr int kSplitSoftmaxBlocks = 4;           // per SM

// ---- Sizes of the kernels, which check them at compile time.
inline constexpr int64_t kSplitTableBytes = 256 * 8 * 16;  // a thermometer for every code, a copy for every bank group
constexpr int64_t SplitScoreBytes(int head_dim, int tiles) {  // streams of queries and their ones
  return int64_t{tiles} * (head_dim / 16 * (4 * 32 * 16 + 32 * 4) + 4 * 4 * 4);
}
// Outputs, maxima, totals and scales of the resident kernel.
constexpr int64_t SplitResidentBytes(int head_dim, int tiles) { return int64_t{tiles} * 4 * (head_dim + 1) * 4 + 224; }
// Resident kernel by look-ups: counts of 4 heads, 128 dimensions and 256 codes, then scales of values, maxima and
// dimensions that need care.
inline constexpr int kSplitLookupTile = 16;         // positions of a warp at a time
inline constexpr int kSplitLookupPositions = 8192;  // of a block in shared memory, at most
inline constexpr int kSplitLookupScaleBytes = kSplitLookupPositions * 4 + 1024;
inline constexpr int64_t kSplitLookupBytes = 128 * 256 * 4 + kSplitLookupScaleBytes + 1024;
// Counts of its positions with the heads, or the thermometers that replace them.
constexpr int64_t SplitLookupCountBytes(int64_t positions) {
  const int64_t counts = (positions + kSplitResidentPad) * 8;
  return counts > kSplitTableBytes ? counts : kSplitTableBytes;
}
// First words of the streams of values under 16 masks, which replace the counts: of 256 codes, a copy for every bank of
// four.
inline constexpr int kSplitWordsMasks = 16;
inline constexpr int64_t kSplitWordsBytes = kSplitWordsMasks * 256 * 4 * 4;
// Streams of 128 bits.
constexpr int64_t SplitStreamBytes(int masks, int levels) { return int64_t{masks} * levels * 16; }
constexpr int64_t SplitValueBytes(int head_dim) { return 8 * 4 * (head_dim + 1) + 16; }

}  // namespace stoch
