// SPDX-License-Identifier: Apache-2.0
// Weights as codes of few bits with scales (WeightCodes), which a GPU decodes itself: the numbers of Decode, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/math/half.h"
#include "kernels/math/number_formats.h"
#include "kernels/math/random.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"

namespace stoch {
namespace {

using Form = WeightCodes::Form;

// Random codes at an odd address, with scales and zero points of random blocks, some scales negative and some so small that
// products are subnormal in F16.
class Coded final : public WeightDecoder {
 public:
  Coded(Form form, int64_t rows, int64_t cols, int64_t block, DType rounded)
      : stored_(static_cast<size_t>(form == Form::kE4m3 ? rows * cols : rows * cols / 2) + 1) {
    for (size_t i = 0; i < stored_.size(); ++i) {
      const auto code = static_cast<uint8_t>(RandomBits(5, 1, i));
      stored_[i] = static_cast<std::byte>(form == Form::kE4m3 && (code & 0x7f) == 0x7f ? code ^ 1 : code);  // no NaN
    }
    codes_ = {form, stored_.data() + 1, rows, cols, block, rounded};
    for (int64_t i = 0; i < rows * codes_.blocks(); ++i) {
      const auto bits = static_cast<uint32_t>(RandomBits(5, 2, static_cast<uint64_t>(i)));
      scales_.push_back((static_cast<float>(bits % 2001) - 1000.0f) * (bits >> 30 == 0 ? 1e-9f : 1e-5f));
      zeros_.push_back(form == Form::kE4m3 ? 0.0f : static_cast<float>(bits >> 20 & 15));
    }
  }
  void Decode(int64_t first, int64_t count, float* out) const override {
    for (int64_t i = first; i < first + count; ++i) *out++ = At(i / codes_.cols, i % codes_.cols);
  }
  int64_t StoredBytes(int64_t count) const override { return count; }
  const WeightCodes* codes() const override { return &codes_; }
  void Scales(int64_t row, float* scales, float* zeros) const override {
    std::copy_n(scales_.begin() + row * codes_.blocks(), codes_.blocks(), scales);
    std::copy_n(zeros_.begin() + row * codes_.blocks(), codes_.blocks(), zeros);
  }

 private:
  float At(int64_t row, int64_t col) const {
    float number = 0;
    if (codes_.form == Form::kE4m3) {
      const auto code = std::to_integer<uint8_t>(codes_.data[row * codes_.cols + col]);
      number = std::copysign(static_cast<float>(E4m3Level(code & 0x7f)) / 512.0f, code < 128 ? 1.0f : -1.0f);
    } else {
      uint32_t word = 0;
      std::memcpy(&word, codes_.data + (col / 8 * codes_.rows + row) * 4, sizeof(word));
      number = static_cast<float>(word >> col % 8 * 4 & 15);
    }
    const auto block = static_cast<size_t>(row * codes_.blocks() + col / codes_.block);
    const float y = (number - zeros_[block]) * scales_[block];
    if (codes_.rounded == DType::kF16) return F16ToFloat(FloatToF16(y));
    return codes_.rounded == DType::kBF16 ? RoundToBf16(y) : y;
  }

  std::vector<std::byte> stored_;
  WeightCodes codes_;
  std::vector<float> scales_, zeros_;
};

// A source of `rows` rows of the decoder, from row `first` on.
WeightSource SourceOf(const Coded& decoder, int64_t first, int64_t rows) {
  WeightSource source;
  source.name = "coded";
  source.rows = rows;
  source.cols = decoder.codes()->cols;
  source.decoder = &decoder;
  source.first = first * source.cols;
  return source;
}

class WeightCodesTest : public testing::TestWithParam<test::BackendUnderTest> {
 protected:
  // In parts, which take turns in the halves of a double buffer.
  static void ExpectDecoded(Backend& backend, const std::vector<WeightSource>& parts) {
    const auto linear = backend.MakeLinear(backend.devices().front(), parts, LinearSpec{Precision::kFp32, nullptr});
    std::vector<float> numbers;
    for (const WeightSource& part : parts) {
      const size_t before = numbers.size();
      numbers.resize(before + static_cast<size_t>(part.rows * part.cols));
      part.decoder->Decode(part.first, part.rows * part.cols, numbers.data() + before);
    }
    EXPECT_TRUE(test::SameBits(backend.Unpack(*linear).values, numbers));
  }
};

TEST_P(WeightCodesTest, AreDecodedToTheNumbersOfTheirDecoder) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 101, kCols = 176, kBefore = 3;
  for (const auto& [form, block] : {std::pair{Form::kE4m3, 40}, {Form::kE4m3, 176}, {Form::kNibbles, 16}}) {
    for (const DType rounded : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(block);
      SCOPED_TRACE(static_cast<int>(rounded));
      const Coded decoder(form, kBefore + kRows, kCols, block, rounded);
      // All cases but the first find both halves used.
      const WeightSource part = SourceOf(decoder, kBefore, kRows);
      ExpectDecoded(*backend, {part, part});
    }
  }
}

// 64 MiB of numbers are decoded at a time: the first part is less, the second one of them, another and a rest.
TEST_P(WeightCodesTest, PartsMayBeOfSeveralSlabs) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kFew = 100, kMany = 2 * 1024 + 75, kCols = 16384;
  const Coded decoder(Form::kNibbles, kFew + kMany, kCols, 128, DType::kF16);
  ExpectDecoded(*backend, {SourceOf(decoder, 0, kFew), SourceOf(decoder, kFew, kMany)});
}

INSTANTIATE_TEST_SUITE_P(Backends, WeightCodesTest, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
