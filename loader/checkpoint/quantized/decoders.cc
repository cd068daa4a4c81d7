// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/quantized/decoders.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/math/half.h"

namespace stoch::quantized {
namespace {

// Rows of GPTQ that share a cache line of words; words of AWQ, of eight rows each, for the 64 rows that a thread packs at
// a time. A strip of either stays in L2.
constexpr int64_t kGptqStrip = 16;
constexpr int64_t kAwqStrip = 8;
constexpr int64_t kNibbles = 8;  // of a word
constexpr int kNibbleBits = 4;

template <typename T>
T ValueAt(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

DType TypeOf(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNone: break;
    case Rounding::kF16: return DType::kF16;
    case Rounding::kBf16: return DType::kBF16;
  }
  return DType::kF32;
}

}  // namespace

float StoredFloats::operator[](int64_t i) const {
  if (dtype == DType::kF32) return ValueAt<float>(data, i);
  const auto bits = ValueAt<uint16_t>(data, i);
  return dtype == DType::kF16 ? F16ToFloat(bits) : Bf16ToFloat(bits);
}

void RowsDecoder::Decode(int64_t first, int64_t count, float* out) const {
  STOCH_CHECK(first % cols_ == 0 && count % cols_ == 0 && first >= 0 && count <= rows_ * cols_ - first);
  for (int64_t row = first / cols_; count > 0; ++row, count -= cols_, out += cols_) DecodeRow(row, out);
}

Fp8Decoder::Fp8Decoder(const std::byte* codes, int64_t rows, int64_t cols, StoredFloats scales,
                       std::array<int64_t, 2> block, Rounding rounding)
    : RowsDecoder(rows, cols),
      codes_{WeightCodes::Form::kE4m3, codes, rows, cols, block[1], TypeOf(rounding)},
      scales_(scales),
      block_rows_(block[0]),
      rounding_(rounding) {}

void Fp8Decoder::DecodeRow(int64_t row, float* out) const {
  for (int64_t i = 0; i < codes_.blocks(); ++i) {
    const int64_t begin = i * codes_.block;
    ScaleE4M3(codes_.data + row * cols() + begin, std::min(codes_.block, cols() - begin),
              scales_[row / block_rows_ * codes_.blocks() + i], rounding_, out + begin);
  }
}

void Fp8Decoder::Scales(int64_t row, float* scales, float* zeros) const {
  for (int64_t i = 0; i < codes_.blocks(); ++i) scales[i] = scales_[row / block_rows_ * codes_.blocks() + i];
  std::fill_n(zeros, codes_.blocks(), 0.0f);
}

int GroupTables::zero(int64_t group, int64_t row) const {
  const auto word = ValueAt<uint32_t>(zeros, group * (rows / kNibbles) + row / kNibbles);
  const int shift = kNibbleBits * order[static_cast<size_t>(row % kNibbles)];
  return static_cast<int>(word >> shift & 15) + added;
}

GptqDecoder::GptqDecoder(const std::byte* words, int64_t rows, int64_t cols, const GroupTables& tables, int64_t group,
                         std::vector<int32_t> groups_of_columns)
    : RowsDecoder(rows, cols),
      words_(words, cols / kNibbles, rows, kGptqStrip),
      codes_{WeightCodes::Form::kNibbles, words, rows, cols, group, DType::kF16},
      tables_(tables),
      groups_of_columns_(std::move(groups_of_columns)) {}

void GptqDecoder::DecodeRow(int64_t row, float* out) const {
  const uint32_t* words = words_.Column(row);
  if (groups_of_columns_.empty()) {
    for (int64_t g = 0; g < tables_.groups; ++g) {
      const int64_t begin = g * codes_.block;
      const int64_t count = std::min(codes_.block, cols() - begin) / kNibbles;
      ScaleWords(words + begin / kNibbles, count, tables_.zero(g, row), tables_.scale(g, row), out + begin);
    }
    return;
  }
  std::vector<float> zeros, scales;
  for (int64_t g = 0; g < tables_.groups; ++g) {
    zeros.push_back(static_cast<float>(tables_.zero(g, row)));
    scales.push_back(tables_.scale(g, row));
  }
  ScaleGrouped(words, cols() / kNibbles, groups_of_columns_.data(), zeros.data(), scales.data(), out);
}

void GptqDecoder::Scales(int64_t row, float* scales, float* zeros) const {
  for (int64_t g = 0; g < codes_.blocks(); ++g) {
    scales[g] = tables_.scale(g, row);
    zeros[g] = static_cast<float>(tables_.zero(g, row));
  }
}

AwqDecoder::AwqDecoder(const std::byte* words, int64_t rows, int64_t cols, const GroupTables& tables, int64_t group)
    : RowsDecoder(rows, cols), words_(words, cols, rows / kNibbles, kAwqStrip), tables_(tables), group_(group) {}

void AwqDecoder::DecodeRow(int64_t row, float* out) const {
  const uint32_t* words = words_.Column(row / kNibbles);
  const int shift = kNibbleBits * tables_.order[static_cast<size_t>(row % kNibbles)];
  for (int64_t g = 0; g < tables_.groups; ++g) {
    const int64_t begin = g * group_;
    ScaleNibbles(words + begin, std::min(group_, cols() - begin), shift, tables_.zero(g, row), tables_.scale(g, row),
                 out + begin);
  }
}

}  // namespace stoch::quantized
