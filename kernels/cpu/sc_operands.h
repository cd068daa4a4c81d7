// SPDX-License-Identifier: Apache-2.0
// The two operands of an SC product a @ b^T as the block kernels want them: rows of a, blocks of 64 rows of b.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/sc_lookup.h"
#include "kernels/cpu/sc_quantize.h"

namespace stoch::cpu {

// Quantized rows of a with everything the kernels derive from a code, so that it is derived once per row and not once
// per block of b. Reused from call to call: Resize keeps its memory.
class ScRows {
 public:
  // `piece`: kernels are called on ranges of dimensions that start at its multiples (a chunk, or a page of positions).
  void Resize(const ScLookup& lookup, const ScChunks& chunks, int64_t rows, int64_t piece);

  ScQuantizer::Row row(int64_t row);
  // Derives table offsets, flips and wide dimensions of a row from its codes. Masks count from 0 in each chunk, or go
  // by `positions` [cols] of the only one.
  void Derive(const ScLookup& lookup, int64_t row, const int32_t* positions = nullptr);

  ScLeft Left(int64_t row, int64_t first_dim) const;

  const ScChunks& chunks() const { return chunks_; }
  int64_t rows() const { return rows_; }
  float scale(int64_t row, int64_t chunk) const { return scales_[static_cast<size_t>(row * chunks_.count + chunk)]; }
  float zero(int64_t row) const { return zeros_[static_cast<size_t>(row)]; }
  int32_t sum(int64_t row) const { return sums_[static_cast<size_t>(row)]; }

 private:
  ScChunks chunks_;
  int64_t rows_ = 0;
  int64_t piece_ = 0;
  int64_t pieces_ = 0;
  bool has_bytes_ = false;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<float> zeros_;
  std::vector<int32_t> sums_;
  std::vector<uint32_t> offsets_;
  std::vector<uint8_t> flips_;
  std::vector<uint32_t> wide_;      // [rows][cols], the first num_wide_ entries of each piece are used
  std::vector<uint32_t> num_wide_;  // [rows][pieces]
};

// Codes of b, [block][dim][64 rows] with zero codes in the rows that pad the last block, and their scales. One byte a
// code: a dimension of a block is one cache line and one vector register.
struct ScBlocks {
  ScChunks chunks;
  int64_t rows = 0;
  Array<uint8_t> codes;  // [blocks][cols][64]
  Array<float> scales;   // [blocks][chunks][64]
  Array<float> zeros;    // kAsymmetric: [blocks][64]
  Array<int32_t> sums;   // kAsymmetric: [blocks][64]

  int64_t num_blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
  int64_t block_bytes() const { return chunks.cols * kBlockRows; }
  const uint8_t* block(int64_t index) const { return codes.get() + index * block_bytes(); }
  const float* block_scales(int64_t index, int64_t chunk) const {
    return scales.get() + (index * chunks.count + chunk) * kBlockRows;
  }
  int64_t bytes() const;
};

// Changes the codes of a quantized row; sum: null, or the sum of its codes.
using CodeFilter = std::function<void(int64_t row, uint8_t* codes, int32_t* sum)>;

// Quantizes and packs rows [first_row, first_row + rows) of those that `quantizer` was made for. Returns the first row
// whose scope holds NaN or infinity, or -1.
int64_t PackBlocks(ThreadPool& pool, const ScOperator& op, const ScQuantizer& quantizer, int64_t first_row,
                   int64_t rows, const RowReader& reader, ScBlocks* blocks, const CodeFilter& filter = {});

// As above, for all of `rows` rows.
int64_t PackBlocks(ThreadPool& pool, const Simd& simd, const ScOperator& op, const ScScopes& scopes, int64_t rows,
                   int64_t cols, const RowReader& reader, ScBlocks* blocks);

// [dims][64] from 64 rows of codes: to[d * 64 + r] = from[r * from_stride + d].
void TransposeBlock(const uint8_t* from, int64_t from_stride, int64_t dims, uint8_t* to);

}  // namespace stoch::cpu
