// SPDX-License-Identifier: Apache-2.0
// Matrices of quantized checkpoints as rows of floats, made where they are read: no copy of a matrix is kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/dtype.h"
#include "loader/checkpoint/quantized/codes.h"
#include "loader/checkpoint/quantized/strips.h"

namespace stoch::quantized {

// Numbers in a mapped file: F32, F16 or BF16, maybe unaligned.
struct StoredFloats {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  float operator[](int64_t i) const;
};

// Whether devices can decode these codes (WeightCodes' requirement).
inline bool IsWhole(const WeightCodes& codes) { return codes.cols % 8 == 0 && codes.block % 8 == 0; }

// Base of the decoders: decodes whole rows, one after another.
class RowsDecoder : public WeightDecoder {
 public:
  void Decode(int64_t first, int64_t count, float* out) const final;

 protected:
  RowsDecoder(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 private:
  virtual void DecodeRow(int64_t row, float* out) const = 0;

  int64_t rows_, cols_;
};

// FP8: codes [rows, cols], a scale for each block of a grid [ceil(rows / block[0]), ceil(cols / block[1])], whose last
// blocks may be smaller. A scale for every row is blocks of {1, cols}, one for all is {rows, cols}.
class Fp8Decoder final : public RowsDecoder {
 public:
  Fp8Decoder(const std::byte* codes, int64_t rows, int64_t cols, StoredFloats scales, std::array<int64_t, 2> block,
             Rounding rounding);
  int64_t StoredBytes(int64_t count) const override { return count; }
  const WeightCodes* codes() const override { return IsWhole(codes_) ? &codes_ : nullptr; }
  void Scales(int64_t row, float* scales, float* zeros) const override;

 private:
  void DecodeRow(int64_t row, float* out) const override;

  WeightCodes codes_;
  StoredFloats scales_;
  int64_t block_rows_;
  Rounding rounding_;
};

// Four bits: a scale (F16) and a zero point for each group of columns and each row; [groups, rows] both, the zero points
// eight in a word.
struct GroupTables {
  StoredFloats scales;
  const std::byte* zeros = nullptr;
  int64_t rows = 0;
  int64_t groups = 0;
  std::array<int, 8> order = {0, 1, 2, 3, 4, 5, 6, 7};  // which nibble of a word is of row 8 j + i
  int added = 0;                                        // to what is stored

  float scale(int64_t group, int64_t row) const { return scales[group * rows + row]; }
  int zero(int64_t group, int64_t row) const;
};

// GPTQ: words [cols / 8, rows], of eight columns each, from the lowest nibble.
class GptqDecoder final : public RowsDecoder {
 public:
  // groups_of_columns: [cols], each below tables.groups; empty: `group` columns in a row have one.
  GptqDecoder(const std::byte* words, int64_t rows, int64_t cols, const GroupTables& tables, int64_t group,
              std::vector<int32_t> groups_of_columns);
  int64_t StoredBytes(int64_t count) const override { return count / 2; }
  const WeightCodes* codes() const override {
    return groups_of_columns_.empty() && IsWhole(codes_) ? &codes_ : nullptr;
  }
  void Scales(int64_t row, float* scales, float* zeros) const override;

 private:
  void DecodeRow(int64_t row, float* out) const override;

  Strips words_;
  WeightCodes codes_;
  GroupTables tables_;
  std::vector<int32_t> groups_of_columns_;
};

// AWQ: words [cols, rows / 8], of eight rows each, in the order of the tables.
class AwqDecoder final : public RowsDecoder {
 public:
  AwqDecoder(const std::byte* words, int64_t rows, int64_t cols, const GroupTables& tables, int64_t group);
  int64_t StoredBytes(int64_t count) const override { return count / 2; }

 private:
  void DecodeRow(int64_t row, float* out) const override;

  Strips words_;
  GroupTables tables_;
  int64_t group_;
};

}  // namespace stoch::quantized
