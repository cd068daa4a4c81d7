// SPDX-License-Identifier: Apache-2.0
// Single rows whose contexts are cut over the whole GPU (attention/split): which kernels, how many blocks, how much
// shared memory.
#pragma once

#include <cstdint>

#include "kernels/plan/attention/shape.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch {

enum class SplitKernel : uint8_t {
  kNone,         // no kernel is built for the streams or heads, or the device lacks shared memory
  kLookup,       // resident_lookup.cu: resident blocks, q k by look-ups
  kLookupWords,  // as kLookup, with p v by first words of streams
  kResident,     // resident.cu: blocks that are all on the GPU at once, q k by binary tensor cores
  kParts,        // scores.cu, softmax.cu, values.cu (fp32: exact.cu): a kernel for each step
};
enum class SplitSoftmax : uint8_t {
  kOneBlock,  // one block computes the softmax of a (row, head)
  kByParts,   // another kernel computes the weights of rows of more than kSplitSoloUnits units
};

struct SplitPlan {
  SplitKernel kernel = SplitKernel::kNone;
  SplitSoftmax softmax = SplitSoftmax::kByParts;
  int block_heads = 1;  // query heads of a KV head that a block takes
  int head_blocks = 1;  // blocks that together take all query heads of a KV head
  // kParts: blocks of each launch, which find their work themselves, and their shared memory.
  int score_blocks = 1;
  int value_blocks = 1;
  int64_t score_shared_bytes = 0;
  int64_t value_shared_bytes = 0;
  // Resident kernels.
  int blocks = 0;  // blocks that the rows of a launch share, at most kSplitResidentRanks for a row and group of heads
  int positions = 0;  // positions whose scores a block keeps in shared memory, a multiple of kSplitResidentStep
  int masks = 0;      // masks whose streams of weights are in shared memory
  int64_t shared_bytes = 0;
};
// The plan of `rows` rows of at most max_length positions, which one launch takes together.
SplitPlan PlanSplit(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows, int64_t max_length);
// As PlanSplit, with kParts the only choice: for rows whose positions are dealt over devices.
SplitPlan PlanSplitParts(const GpuTraits& gpu, const AttentionShape& shape, int64_t max_length);

// Whether blocks wait for each other, and so must all be on the GPU at once.
constexpr bool IsResident(SplitKernel kernel) {
  return kernel == SplitKernel::kResident || kernel == SplitKernel::kLookup || kernel == SplitKernel::kLookupWords;
}

// Sums of p v that are in scratch for `rows` rows at a time: head_dim for each (row, head), or for each head of each
// block of a resident kernel if these are more.
int64_t SplitSums(const GpuTraits& gpu, const AttentionShape& shape, int64_t rows);

inline constexpr int kSplitScHeads = 8;         // most query heads of a block: columns of a tile
inline constexpr int kSplitExactHeads = 4;      // most query heads of a block in fp32
inline constexpr int kSplitResidentRanks = 16;  // most blocks of a row and group of heads in a resident kernel
inline constexpr int kSplitResidentRows = 32;   // most rows of a launch of a resident kernel
inline constexpr int kSplitResidentThreads = 512;
inline constexpr int kSplitResidentStep = 32;  // room for positions of a block is a multiple of this
inline constexpr int kSplitResidentPad = 16;   // floats of padding between heads, which are then in different banks
inline constexpr int kSplitUnit = 256;         // positions of a unit: contexts are cut at multiples of it
inline constexpr int64_t kSplitOneBlockSoftmax = 4096;  // longest context whose softmax one block always computes
inline constexpr int kSplitSoloUnits = 8;               // most units of a row whose softmax one block computes
inline constexpr int kSplitWeightUnits = 8;             // units of a part of a longer row's weights
inline constexpr int kSplitSoftmaxBlocks = 4;           // blocks of the softmax kernels per SM

// ---- Sizes of the kernels, which check them at compile time.
inline constexpr int64_t kSplitTableBytes = 256 * 8 * 16;  // a thermometer for every code, a copy for every bank group
constexpr int64_t SplitScoreBytes(int head_dim, int tiles) {  // streams of queries and their numbers of ones
  return int64_t{tiles} * (head_dim / 16 * (4 * 32 * 16 + 32 * 4) + 4 * 4 * 4);
}
// Bytes of outputs, maxima, totals and scales of the resident kernel.
constexpr int64_t SplitResidentBytes(int head_dim, int tiles) { return int64_t{tiles} * 4 * (head_dim + 1) * 4 + 224; }
// Shared memory of the resident kernel by look-ups: small arrays, the table of counts of 4 heads for 128 dimensions and
// 256 codes, and the scales of values (after 1024 bytes that exponentials may reach).
inline constexpr int kSplitLookupTile = 16;         // positions that a warp takes at a time
inline constexpr int kSplitLookupPositions = 8192;  // most positions of a block in shared memory
inline constexpr int kSplitLookupScaleBytes = kSplitLookupPositions * 4 + 1024;
inline constexpr int64_t kSplitLookupBytes = 128 * 256 * 4 + kSplitLookupScaleBytes + 1024;
// Bytes of the counts of q k of 4 heads, or of the thermometers that replace them, whichever are more.
constexpr int64_t SplitLookupCountBytes(int64_t positions) {
  const int64_t counts = (positions + kSplitResidentPad) * 8;
  return counts > kSplitTableBytes ? counts : kSplitTableBytes;
}
// First words of the streams of values under 16 masks, for 256 codes, in four copies that lie in four banks. They
// replace the counts of q k.
inline constexpr int kSplitWordsMasks = 16;
inline constexpr int64_t kSplitWordsBytes = kSplitWordsMasks * 256 * 4 * 4;
// Bytes of `masks` x `levels` streams of 128 bits.
constexpr int64_t SplitStreamBytes(int masks, int levels) { return int64_t{masks} * levels * 16; }
constexpr int64_t SplitValueBytes(int head_dim) { return 8 * 4 * (head_dim + 1) + 16; }

}  // namespace stoch
