// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_operands.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace stoch::cpu {
namespace {

// Blocks are transposed in tiles of one register's bytes a side, in the compiler's own vectors: as baseline code, this
// takes an eighth of the time of single bytes.
constexpr int64_t kTile = 16;
using TileRow = uint8_t __attribute__((vector_size(kTile)));

// Four times the interleaving of rows i and i + 8 of 16 is a transposition.
__attribute__((always_inline)) inline void Interleave(const TileRow* from, TileRow* to) {
  for (int i = 0; i < kTile / 2; ++i) {
    const TileRow& a = from[i];
    const TileRow& b = from[i + kTile / 2];
    to[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    to[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
}

void TransposeTile(const uint8_t* from, int64_t from_stride, uint8_t* to) {
  TileRow rows[kTile];
  TileRow other[kTile];
  for (int64_t i = 0; i < kTile; ++i) memcpy(&rows[i], from + i * from_stride, sizeof(TileRow));
  Interleave(rows, other);
  Interleave(other, rows);
  Interleave(rows, other);
  Interleave(other, rows);
  for (int64_t i = 0; i < kTile; ++i) memcpy(to + i * kBlockRows, &rows[i], sizeof(TileRow));
}

}  // namespace

void ScRows::Resize(const ScLookup& lookup, const ScChunks& chunks, int64_t rows, int64_t piece) {
  chunks_ = chunks;
  rows_ = rows;
  piece_ = piece;
  pieces_ = (chunks.cols + piece - 1) / piece;
  const size_t codes = static_cast<size_t>(rows * chunks.cols);
  codes_.resize(codes);
  scales_.resize(static_cast<size_t>(rows * chunks.count));
  const size_t zeros = lookup.op->code == ScCode::kAsymmetric ? static_cast<size_t>(rows) : 0;
  zeros_.resize(zeros);
  sums_.resize(zeros);
  has_bytes_ = lookup.has_bytes();
  if (!has_bytes_) return;
  offsets_.resize(codes);
  flips_.resize(codes);
  num_wide_.assign(static_cast<size_t>(rows * pieces_), 0);
  if (!lookup.wide_row.empty()) wide_.resize(codes);
}

ScQuantizer::Row ScRows::row(int64_t row) {
  ScQuantizer::Row out{codes_.data() + row * chunks_.cols, scales_.data() + row * chunks_.count, nullptr, nullptr};
  if (!zeros_.empty()) {
    out.zero = zeros_.data() + row;
    out.sum = sums_.data() + row;
  }
  return out;
}

void ScRows::Derive(const ScLookup& lookup, int64_t row, const int32_t* positions) {
  if (!lookup.has_bytes()) return;
  const int64_t cols = chunks_.cols;
  const uint8_t* codes = codes_.data() + row * cols;
  uint32_t* offsets = offsets_.data() + row * cols;
  uint8_t* flips = flips_.data() + row * cols;
  for (int64_t c = 0; c < chunks_.count; ++c) {
    const int64_t begin = chunks_.begin(c);
    for (int64_t i = 0; i < chunks_.dims(c); ++i) {
      const int64_t dim = positions == nullptr ? i : positions[i];
      offsets[begin + i] = static_cast<uint32_t>(lookup.row(dim, codes[begin + i]) * ScTable::kRowBytes);
      flips[begin + i] = (codes[begin + i] & 0x80) != 0 ? kFlip : uint8_t{0};
    }
  }
  if (lookup.wide_row.empty()) return;
  uint32_t* num_wide = num_wide_.data() + row * pieces_;
  std::fill(num_wide, num_wide + pieces_, 0u);
  for (int64_t d = 0; d < cols; ++d) {
    if (lookup.wide_row[offsets[d] / ScTable::kRowBytes] < 0) continue;
    const int64_t piece = d / piece_;
    wide_[static_cast<size_t>(row * cols + piece * piece_ + num_wide[piece])] =
        static_cast<uint32_t>(d - piece * piece_);
    ++num_wide[piece];
  }
}

ScLeft ScRows::Left(int64_t row, int64_t first_dim) const {
  const int64_t at = row * chunks_.cols + first_dim;
  ScLeft left;
  left.codes = codes_.data() + at;
  if (!has_bytes_) return left;
  left.offsets = offsets_.data() + at;
  left.flips = flips_.data() + at;
  left.num_wide = num_wide_[static_cast<size_t>(row * pieces_ + first_dim / piece_)];
  if (left.num_wide > 0) left.wide = wide_.data() + at;
  return left;
}

int64_t ScBlocks::bytes() const {
  const int64_t padded = num_blocks() * kBlockRows;
  const int64_t zeros_and_sums = zeros != nullptr ? padded * static_cast<int64_t>(sizeof(float) + sizeof(int32_t)) : 0;
  return padded * (chunks.cols + chunks.count * static_cast<int64_t>(sizeof(float))) + zeros_and_sums;
}

void TransposeBlock(const uint8_t* from, int64_t from_stride, int64_t dims, uint8_t* to) {
  int64_t d = 0;
  for (; d + kTile <= dims; d += kTile) {
    for (int64_t r = 0; r < kBlockRows; r += kTile) {
      TransposeTile(from + r * from_stride + d, from_stride, to + d * kBlockRows + r);
    }
  }
  for (; d < dims; ++d) {
    for (int64_t r = 0; r < kBlockRows; ++r) to[d * kBlockRows + r] = from[r * from_stride + d];
  }
}

int64_t PackBlocks(ThreadPool& pool, const ScOperator& op, const ScQuantizer& quantizer, int64_t first_row,
                   int64_t rows, const RowReader& reader, ScBlocks* blocks, const CodeFilter& filter) {
  blocks->chunks = quantizer.chunks();
  blocks->rows = rows;
  const int64_t padded = blocks->num_blocks() * kBlockRows;
  const int64_t chunks = blocks->chunks.count;
  const int64_t cols = blocks->chunks.cols;
  blocks->codes = MakeArray<uint8_t>(padded * cols);
  blocks->scales = MakeArray<float>(padded * chunks);
  if (op.code == ScCode::kAsymmetric) {
    blocks->zeros = MakeArray<float>(padded);
    blocks->sums = MakeArray<int32_t>(padded);
  }
  std::atomic<int64_t> first_bad{rows};

  // Bytes between rows of codes that are not yet transposed: a line more than a power of two, as 64 lines that far apart would
  // share a few sets of the first-level cache.
  const int64_t stride = cols + kBlockRows;
  struct Scratch {
    std::vector<float> x, scales;
    std::vector<uint8_t> codes;
  };
  std::vector<Scratch> scratches(static_cast<size_t>(pool.size()));
  pool.ParallelFor(blocks->num_blocks(), [&](int64_t b, int thread) {
    Scratch& scratch = scratches[static_cast<size_t>(thread)];
    scratch.x.resize(static_cast<size_t>(cols));
    scratch.scales.resize(static_cast<size_t>(chunks));
    scratch.codes.assign(static_cast<size_t>(stride * kBlockRows), 0);
    for (int64_t r = 0; r < std::min<int64_t>(kBlockRows, rows - b * kBlockRows); ++r) {
      const int64_t row = b * kBlockRows + r;
      ScQuantizer::Row out{scratch.codes.data() + r * stride, scratch.scales.data(), nullptr, nullptr};
      if (blocks->zeros != nullptr) {
        out.zero = blocks->zeros.get() + row;
        out.sum = blocks->sums.get() + row;
      }
      if (!quantizer.Quantize(first_row + row, reader(first_row + row, scratch.x.data()), out)) {
        AtomicMin(first_bad, row);
      }
      if (filter) filter(first_row + row, out.codes, out.sum);
      for (int64_t c = 0; c < chunks; ++c) {
        blocks->scales[static_cast<size_t>((b * chunks + c) * kBlockRows + r)] = scratch.scales[static_cast<size_t>(c)];
      }
    }
    TransposeBlock(scratch.codes.data(), stride, cols, blocks->codes.get() + b * blocks->block_bytes());
  });
  return first_bad.load() == rows ? -1 : first_row + first_bad.load();
}

int64_t PackBlocks(ThreadPool& pool, const Simd& simd, const ScOperator& op, const ScScopes& scopes, int64_t rows,
                   int64_t cols, const RowReader& reader, ScBlocks* blocks) {
  const ScQuantizer quantizer(pool, simd, op, ScChunks(op, cols), scopes, rows, reader);
  return PackBlocks(pool, op, quantizer, 0, rows, reader, blocks);
}

}  // namespace stoch::cpu
