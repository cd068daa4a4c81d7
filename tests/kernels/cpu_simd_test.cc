// SPDX-License-Identifier: Apache-2.0
// Every instruction set's inner loops against the scalar reference, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cpu/sc_operands.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/math/half.h"
#include "tests/support/expect_invalid.h"

namespace stoch::cpu {
namespace {

std::vector<float> RandomFloats(std::mt19937& random, int64_t n, float spread = 3.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

using Entries = std::vector<std::pair<std::string, std::string>>;

ScConfig MakeConfig(const Entries& entries) {
  ScConfig config;
  for (const auto& [name, value] : entries) SetScParameter(config, name, value);
  return config;
}

template <typename T>
::testing::AssertionResult SameBytes(const std::vector<T>& expected, const std::vector<T>& actual) {
  for (size_t i = 0; i < expected.size(); ++i) {
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are what is compared
    if (std::memcmp(&expected[i], &actual[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << +expected[i] << " became " << +actual[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class CpuSimd : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const std::string_view name : SupportedSimd()) {
      if (name == GetParam()) simd_ = &SelectSimd(name);
    }
    if (simd_ == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
    ASSERT_EQ(simd_->name, GetParam());
  }
  const Simd& reference_ = ScalarSimd();
  const Simd* simd_ = nullptr;
  std::mt19937 random_{7};
};

// One row of codes with what ScRows derives from them.
ScRows RandomRows(std::mt19937& random, const ScLookup& lookup, int64_t rows, int64_t dims) {
  ScRows result;
  const ScChunks chunks(*lookup.op, dims);
  result.Resize(lookup, chunks, rows, chunks.size);
  for (int64_t i = 0; i < rows; ++i) {
    const std::vector<float> x = RandomFloats(random, dims);
    const ScQuantizer::Row row = result.row(i);
    for (int64_t d = 0; d < dims; ++d) {
      // Small, large and extreme levels, zeros and both signs.
      const float level = std::round(x[static_cast<size_t>(d)] * static_cast<float>(lookup.op->q_max) / 4.0f);
      const float limit = static_cast<float>(lookup.op->q_max);
      const int q = static_cast<int>(std::fmax(-limit, std::fmin(limit, level)));
      row.codes[d] = lookup.op->code == ScCode::kSignMagnitude ? static_cast<uint8_t>(q < 0 ? 0x80 | -q : q)
                                                               : static_cast<uint8_t>(q + lookup.op->q_max);
    }
    result.Derive(lookup, i);
  }
  return result;
}

TEST_P(CpuSimd, ScBlockForEveryKindOfTable) {
  const Entries configs[] = {{{"stoc_len", "256"}},
                             {{"stoc_len", "64"}},
                             {{"stoc_len", "17"}},
                             {{"halve", "1"}},
                             {{"halve", "1"}, {"stoc_len", "33"}},
                             {{"halve", "1"}, {"gate", "and"}},
                             {{"sc_prec", "3"}},
                             {{"sc_prec", "6"}},
                             {{"gate", "and"}},
                             {{"gate", "xnor"}},
                             {{"source", "lfsr"}},
                             {{"scramble", "off"}},
                             {{"sc_prec", "5"}},
                             {{"source", "random"}}};
  for (const Entries& entries : configs) {
    SCOPED_TRACE(entries.back().first + " = " + entries.back().second);
    const ScLookupPtr lookup = MakeScLookup(MakeScOperator(MakeConfig(entries)));
    for (const int64_t dims : {1, 2, 3, 44, 64, 127, 128, 129, 257, 300}) {
      for (const auto& [lefts, num_blocks] :
           {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {1, 5}, {2, 4}, {3, 5}, {4, 3}}) {
        const ScRows left = RandomRows(random_, *lookup, lefts, dims);
        const ScRows right = RandomRows(random_, *lookup, num_blocks * kBlockRows, dims);
        std::vector<uint8_t> blocks(static_cast<size_t>(num_blocks * dims * kBlockRows));
        for (int64_t b = 0; b < num_blocks; ++b) {
          TransposeBlock(right.Left(b * kBlockRows, 0).codes, dims, dims, blocks.data() + b * dims * kBlockRows);
        }
        std::vector<ScLeft> spans;
        for (int64_t t = 0; t < lefts; ++t) spans.push_back(left.Left(t, 0));
        std::vector<int32_t> expected(static_cast<size_t>(lefts * num_blocks * kBlockRows), -1);
        std::vector<int32_t> actual(expected.size(), -2);
        reference_.sc_block(lookup->table(), spans.data(), lefts, 0, dims, blocks.data(), dims * kBlockRows, num_blocks,
                            expected.data());
        simd_->sc_block(lookup->table(), spans.data(), lefts, 0, dims, blocks.data(), dims * kBlockRows, num_blocks,
                        actual.data());
        ASSERT_TRUE(SameBytes(expected, actual)) << lefts << " rows, " << num_blocks << " blocks, " << dims << " dims";
      }
    }
  }
}

// Count vectors against the scalar products: every width of a panel, whole and short groups of dimensions, and codes whose
// count is 128, which a byte does not hold with its sign.
TEST_P(CpuSimd, PanelsAreTheScalarProducts) {
  if (simd_->panel == nullptr) GTEST_SKIP() << GetParam() << " has no count vectors";
  const char* configs[][2] = {
      {"halve", "1"}, {"stoc_len", "64"}, {"stoc_len", "17"}, {"sc_prec", "3"}, {"sc_prec", "6"}};
  for (const auto& [name, value] : configs) {
    SCOPED_TRACE(std::string(name) + " = " + value);
    ScConfig config;
    SetScParameter(config, name, value);
    const ScLookupPtr lookup = MakeScLookup(MakeScOperator(config));
    ASSERT_EQ(lookup->panel_parts, 1);
    for (const int64_t dims : {1, 15, 16, 17, 32, 64, 100, 128}) {
      for (const int64_t lefts : {1, 15, 16, 17, 31, 32, 33, 63, 64}) {
        constexpr int64_t kBlocks = 3;
        ScRows left = RandomRows(random_, *lookup, lefts, dims);
        const ScRows right = RandomRows(random_, *lookup, kBlocks * kBlockRows, dims);
        std::vector<uint8_t> blocks(static_cast<size_t>(kBlocks * dims * kBlockRows));
        for (int64_t b = 0; b < kBlocks; ++b) {
          TransposeBlock(right.Left(b * kBlockRows, 0).codes, dims, dims, blocks.data() + b * dims * kBlockRows);
        }
        std::vector<ScLeft> spans;
        std::vector<ScPanelLeft> panel;
        for (int64_t t = 0; t < lefts; ++t) {
          spans.push_back(left.Left(t, 0));
          panel.push_back({lookup->bytes.get(), spans.back().offsets, spans.back().flips});
        }
        panel[static_cast<size_t>(lefts / 2)].bytes = nullptr;  // a row that adds nothing
        std::vector<int32_t> expected(static_cast<size_t>(lefts * kBlocks * kBlockRows));
        reference_.sc_block(lookup->table(), spans.data(), lefts, 0, dims, blocks.data(), dims * kBlockRows, kBlocks,
                            expected.data());
        const Array<uint8_t> table = MakeArray<uint8_t>(PanelLoops::kTableBytes);
        const Array<uint16_t> sums = MakeArray<uint16_t>(kBlocks * kBlockRows * PanelLoops::kRows);
        const uint8_t* codes[kBlocks];
        for (int64_t b = 0; b < kBlocks; ++b) codes[b] = blocks.data() + b * dims * kBlockRows;
        simd_->panel->add(panel.data(), lefts, dims, lookup->op->levels, codes, kBlocks, table.get(), sums.get());
        for (int64_t b = 0; b < kBlocks; ++b) {
          std::vector<int32_t> actual(static_cast<size_t>(lefts * kBlockRows), 5);
          simd_->panel->sums(sums.get(), b, lefts, dims, b == 1, actual.data());
          for (int64_t t = 0; t < lefts; ++t) {
            for (int64_t r = 0; r < kBlockRows; ++r) {
              const int32_t sum =
                  t == lefts / 2 ? 0 : expected[static_cast<size_t>((t * kBlocks + b) * kBlockRows + r)];
              ASSERT_EQ(actual[static_cast<size_t>(t * kBlockRows + r)], sum + (b == 1 ? 5 : 0))
                  << lefts << " rows, " << dims << " dims, row " << t << ", block " << b << ", column " << r;
            }
          }
        }
      }
    }
  }
}

TEST_P(CpuSimd, PanelsDoNotOverflow) {
  if (simd_->panel == nullptr) GTEST_SKIP() << GetParam() << " has no count vectors";
  ScConfig config;
  config.halve = true;
  const ScLookupPtr lookup = MakeScLookup(MakeScOperator(config));
  constexpr int64_t kDims = PanelLoops::kDims;
  for (const bool negative : {false, true}) {
    ScRows left;
    left.Resize(*lookup, ScChunks(*lookup->op, kDims), 1, kDims);
    std::fill(left.row(0).codes, left.row(0).codes + kDims, uint8_t{0x80 | 127});
    left.Derive(*lookup, 0);
    const std::vector<uint8_t> block(kDims * kBlockRows, static_cast<uint8_t>(negative ? 0x80 | 127 : 127));
    const ScLeft span = left.Left(0, 0);
    const ScPanelLeft row{lookup->bytes.get(), span.offsets, span.flips};
    const Array<uint8_t> table = MakeArray<uint8_t>(PanelLoops::kTableBytes);
    const Array<uint16_t> sums = MakeArray<uint16_t>(kBlockRows * PanelLoops::kRows);
    std::vector<int32_t> acc(kBlockRows);
    const uint8_t* const codes = block.data();
    simd_->panel->add(&row, 1, kDims, lookup->op->levels, &codes, 1, table.get(), sums.get());
    simd_->panel->sums(sums.get(), 0, 1, kDims, false, acc.data());
    for (const int32_t sum : acc) EXPECT_EQ(sum, (negative ? 128 : -128) * kDims);
  }
}

// Which operators have rows of two look-ups, and that they are the counts.
TEST(CpuScTable, TwoLookupsAreTheCountsOrAbsent) {
  enum Form { kNone, kStairs, kAverages };
  const std::pair<Entries, Form> configs[] = {{{{"halve", "1"}}, kAverages},
                                              {{{"halve", "1"}, {"stoc_len", "64"}}, kAverages},
                                              {{{"halve", "1"}, {"stoc_len", "17"}}, kAverages},
                                              {{{"halve", "1"}, {"stoc_len", "100"}}, kAverages},
                                              {{{"halve", "1"}, {"scramble", "off"}}, kAverages},
                                              {{{"halve", "1"}, {"sc_prec", "7"}}, kStairs},
                                              {{{"stoc_len", "64"}}, kStairs},
                                              {{{"stoc_len", "17"}}, kStairs},
                                              {{{"stoc_len", "100"}}, kStairs},
                                              {{{"stoc_len", "256"}}, kNone},
                                              {{{"gate", "xnor"}}, kNone},
                                              {{{"mode", "unipolar"}}, kNone}};
  for (const auto& [entries, form] : configs) {
    SCOPED_TRACE(entries.back().first + " = " + entries.back().second);
    const ScLookupPtr lookup = MakeScLookup(MakeScOperator(MakeConfig(entries)));
    const ScOperator& op = *lookup->op;
    const ScTable table = lookup->table();
    ASSERT_EQ(table.averages != nullptr, form == kAverages);
    ASSERT_EQ(table.stairs != nullptr, form == kStairs);
    if (form == kNone) continue;
    const uint8_t* row = form == kAverages ? table.averages : table.stairs;
    for (int mask = 0; mask < op.masks; ++mask) {
      for (int a = 0; a < op.levels; ++a, row += ScTable::kPairBytes) {
        for (int b = 0; b < op.levels; ++b) {
          const int v = b + (b > 63 ? 1 : 0);
          const uint8_t below = static_cast<uint8_t>((1 << b % 8) - 1);
          const int average =
              ((row[v / 16] ^ ScTable::kAverageComplement) + (row[16 + v % 16] ^ ScTable::kAverageComplement)) / 2;
          const int stairs = row[b / 8] + std::popcount(static_cast<uint8_t>(row[16 + b / 8] & below));
          ASSERT_EQ(form == kAverages ? average : stairs, op.count(mask, a, b));
        }
      }
    }
  }
}

// Every entry of the table with every pair of signs, and the largest levels of both sides in every row.
TEST_P(CpuSimd, ScBlockReadsEveryEntry) {
  const ScLookupPtr lookup = MakeScLookup(MakeScOperator(MakeConfig({{"halve", "1"}})));
  const ScOperator& op = *lookup->op;
  ScRows left;
  left.Resize(*lookup, ScChunks(op, 1), 1, 1);
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int code = 0; code < 256; ++code) {
      left.row(0).codes[0] = static_cast<uint8_t>(code);
      left.Derive(*lookup, 0);
      ScLeft span = left.Left(0, 0);
      const auto offset = static_cast<uint32_t>(lookup->row(mask, code) * ScTable::kRowBytes);
      span.offsets = &offset;
      for (int first = 0; first < 256; first += kBlockRows) {
        std::vector<uint8_t> block;
        for (int r = 0; r < kBlockRows; ++r) block.push_back(static_cast<uint8_t>(first + r));
        std::vector<int32_t> acc(kBlockRows);
        simd_->sc_block(lookup->table(), &span, 1, mask, 1, block.data(), 0, 1, acc.data());
        for (int r = 0; r < kBlockRows; ++r) {
          const int other = first + r;
          const int count = op.count(mask, code & 0x7f, other & 0x7f);
          ASSERT_EQ(acc[static_cast<size_t>(r)], (code ^ other) & 0x80 ? -count : count)
              << "mask " << mask << ", codes " << code << " and " << other;
        }
      }
    }
  }
}

// The largest sums there are: every count at its maximum, with one sign.
TEST_P(CpuSimd, ScBlockDoesNotOverflow) {
  for (const bool negative : {false, true}) {
    ScConfig config;
    config.scramble = ScScramble::kOff;
    const ScLookupPtr lookup = MakeScLookup(MakeScOperator(config));
    constexpr int64_t kDims = 1024;
    ScRows left;
    left.Resize(*lookup, ScChunks(*lookup->op, kDims), 1, kDims);
    for (const uint8_t magnitude : {uint8_t{126}, uint8_t{127}}) {
      std::fill(left.row(0).codes, left.row(0).codes + kDims, magnitude);
      left.Derive(*lookup, 0);
      const std::vector<uint8_t> block(kDims * kBlockRows, static_cast<uint8_t>(negative ? 0x80 | 127 : 127));
      const ScLeft span = left.Left(0, 0);
      std::vector<int32_t> acc(kBlockRows);
      simd_->sc_block(lookup->table(), &span, 1, 0, kDims, block.data(), 0, 1, acc.data());
      const int count = lookup->op->count(0, magnitude, 127);
      ASSERT_GE(count, 254);
      for (const int32_t sum : acc) EXPECT_EQ(sum, (negative ? -1 : 1) * count * static_cast<int32_t>(kDims));
    }
  }
}

TEST_P(CpuSimd, QuantizeAndItsMaximum) {
  for (const int64_t n : {1, 7, 8, 15, 16, 17, 44, 128, 172, 352}) {
    for (const float spread : {1e-30f, 1e-6f, 1.0f, 1e30f}) {
      const std::vector<float> x = RandomFloats(random_, n, spread);
      const uint32_t bits = reference_.max_abs_bits(x.data(), n);
      EXPECT_EQ(simd_->max_abs_bits(x.data(), n), bits);
      for (const int q_max : {3, 7, 31, 127}) {
        const float scale = std::fmax(BitsToFloat(bits), 1e-5f) / static_cast<float>(q_max);
        std::vector<uint8_t> expected(static_cast<size_t>(n), 1);
        std::vector<uint8_t> actual(static_cast<size_t>(n), 2);
        reference_.quantize(x.data(), n, scale, q_max, expected.data());
        simd_->quantize(x.data(), n, scale, q_max, actual.data());
        ASSERT_TRUE(SameBytes(expected, actual));
      }
    }
  }
}

// Halves between two levels, where rounding to even shows.
TEST_P(CpuSimd, QuantizeRoundsHalfToEven) {
  std::vector<float> x;
  for (int i = -260; i <= 260; ++i) x.push_back(static_cast<float>(i) * 0.5f);
  std::vector<uint8_t> codes(x.size());
  simd_->quantize(x.data(), static_cast<int64_t>(x.size()), 1.0f, 127, codes.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const int level = static_cast<int>(std::fmax(-127.0f, std::fmin(127.0f, std::nearbyintf(x[i]))));
    EXPECT_EQ(codes[i], level < 0 ? 0x80 | -level : level) << x[i];
  }
}

TEST_P(CpuSimd, NonFiniteIsSeen) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{16}, size_t{36}}) {
      std::vector<float> x(37, 1.0f);
      x[at] = bad;
      EXPECT_GT(simd_->max_abs_bits(x.data(), 37), 0x7f7fffffu);
    }
  }
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(simd_->max_abs_bits(&largest, 1), 0x7f7fffffu);
}

TEST_P(CpuSimd, Dequantize) {
  std::vector<int32_t> acc(kBlockRows);
  for (int32_t& sum : acc) sum = static_cast<int32_t>(random_()) >> 8;
  const std::vector<float> scales = RandomFloats(random_, kBlockRows, 0.1f);
  const std::vector<float> start = RandomFloats(random_, kBlockRows);
  std::vector<float> expected = start;
  std::vector<float> actual = start;
  reference_.sc_dequantize(acc.data(), 126.0078125f, 0.037f, scales.data(), expected.data());
  simd_->sc_dequantize(acc.data(), 126.0078125f, 0.037f, scales.data(), actual.data());
  EXPECT_TRUE(SameBytes(expected, actual));
  EXPECT_FALSE(SameBytes(start, actual));
}

TEST_P(CpuSimd, DotRowsOfEveryType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
    for (const int64_t cols : {1, 8, 15, 16, 17, 64, 172, 352}) {
      for (const auto& [num_x, num_w] : {std::pair<int64_t, int64_t>{1, 1}, {1, 13}, {3, 7}, {4, 6}, {9, 14}}) {
        const std::vector<float> x = RandomFloats(random_, num_x * (cols + 3));
        const std::vector<float> weights = RandomFloats(random_, num_w * cols);
        // Two bytes past any alignment, as a mapped file may have it.
        std::vector<char> stored(static_cast<size_t>(num_w * cols * size + 2));
        for (size_t i = 0; i < weights.size(); ++i) {
          const uint16_t half =
              dtype == DType::kF16 ? FloatToF16(weights[i]) : static_cast<uint16_t>(FloatToBits(weights[i]) >> 16);
          const void* from = dtype == DType::kF32 ? static_cast<const void*>(&weights[i]) : &half;
          std::memcpy(stored.data() + 2 + static_cast<int64_t>(i) * size, from, static_cast<size_t>(size));
        }
        const ExactRows w{stored.data() + 2, cols, dtype};
        for (const bool add : {false, true}) {
          std::vector<float> expected(static_cast<size_t>(num_x * num_w), 0.25f);
          std::vector<float> actual = expected;
          reference_.dot_rows(x.data(), cols + 3, num_x, w, num_w, cols, expected.data(), num_w, add);
          simd_->dot_rows(x.data(), cols + 3, num_x, w, num_w, cols, actual.data(), num_w, add);
          ASSERT_TRUE(SameBytes(expected, actual)) << DTypeName(dtype) << " cols " << cols;
        }
        std::vector<float> expected(weights.size());
        std::vector<float> actual(weights.size());
        reference_.load(w.data, dtype, num_w * cols, expected.data());
        simd_->load(w.data, dtype, num_w * cols, actual.data());
        ASSERT_TRUE(SameBytes(expected, actual));
      }
    }
  }
}

TEST_P(CpuSimd, WeightedSum) {
  for (const int64_t dims : {1, 8, 16, 24, 64, 80}) {
    for (const int64_t n : {1, 15, 16, 17, 31, 100}) {
      const std::vector<float> p = RandomFloats(random_, n);
      const std::vector<float> v = RandomFloats(random_, n * dims);
      std::vector<const float*> rows;
      for (int64_t t = 0; t < n; ++t) rows.push_back(v.data() + (n - 1 - t) * dims);
      std::vector<float> expected(static_cast<size_t>(dims));
      std::vector<float> actual(static_cast<size_t>(dims));
      reference_.weighted_sum(p.data(), n, rows.data(), dims, expected.data());
      simd_->weighted_sum(p.data(), n, rows.data(), dims, actual.data());
      ASSERT_TRUE(SameBytes(expected, actual)) << dims << " dims, " << n << " positions";
    }
  }
}

// Products that underflow leave -0 in lanes, which padding with +0 would turn into +0: no total shows which it was.
TEST_P(CpuSimd, FoldedTotalsAreNeverNegativeZero) {
  for (const int64_t n : {1, 8, 15, 16, 17, 31, 32, 33}) {
    const std::vector<float> x(static_cast<size_t>(n), 1e-25f);
    const std::vector<float> small(static_cast<size_t>(n), -1e-25f);
    for (const Simd* simd : {&reference_, simd_}) {
      for (const int64_t rows : {1, 9}) {
        std::vector<float> stored(static_cast<size_t>(rows * n), -1e-25f);
        std::vector<float> dots(static_cast<size_t>(rows), 1.0f);
        simd->dot_rows(x.data(), n, 1, {stored.data(), n, DType::kF32}, rows, n, dots.data(), rows, false);
        for (const float dot : dots) EXPECT_EQ(FloatToBits(dot), 0u) << simd->name << ", " << n << " columns";
      }
      std::vector<const float*> v(static_cast<size_t>(n), small.data());
      std::vector<float> sums(static_cast<size_t>(n), 1.0f);
      simd->weighted_sum(x.data(), n, v.data(), n, sums.data());
      for (const float sum : sums) EXPECT_EQ(FloatToBits(sum), 0u) << simd->name << ", " << n << " positions";
    }
  }
}

TEST_P(CpuSimd, RowOperations) {
  for (const int64_t n : {1, 15, 16, 17, 64, 172, 255, 256, 257, 352, 1000}) {
    const std::vector<float> x = RandomFloats(random_, n, 20.0f);
    const std::vector<float> x2 = RandomFloats(random_, n);
    const float squares = reference_.sum_squares(x.data(), n);
    EXPECT_EQ(FloatToBits(simd_->sum_squares(x.data(), n)), FloatToBits(squares));

    std::vector<float> expected(static_cast<size_t>(n));
    std::vector<float> actual(static_cast<size_t>(n));
    const float sum = reference_.exp_sum(x.data(), n, 11.5f, expected.data());
    EXPECT_EQ(FloatToBits(simd_->exp_sum(x.data(), n, 11.5f, actual.data())), FloatToBits(sum));
    EXPECT_EQ(FloatToBits(simd_->exp_sum(x.data(), n, 11.5f, nullptr)), FloatToBits(sum));
    ASSERT_TRUE(SameBytes(expected, actual));

    const LogSum base_of{31.5, 4.75}, of{28.25, 5.125};
    EXPECT_EQ(DoubleToBits(simd_->divergence(x.data(), base_of, x2.data(), of, n)),
              DoubleToBits(reference_.divergence(x.data(), base_of, x2.data(), of, n)))
        << n;

    reference_.silu_mul(x.data(), x2.data(), n, expected.data());
    simd_->silu_mul(x.data(), x2.data(), n, actual.data());
    ASSERT_TRUE(SameBytes(expected, actual));

    reference_.random(3, 5, 1234567, n, 0.02f, expected.data());
    simd_->random(3, 5, 1234567, n, 0.02f, actual.data());
    ASSERT_TRUE(SameBytes(expected, actual));
  }
}

// Every region of Exp: underflow, overflow, both ends of the two-factor scaling.
TEST_P(CpuSimd, ExpOverItsWholeRange) {
  std::vector<float> x;
  for (float value = -105.0f; value < 105.0f; value += 0.0137f) x.push_back(value);
  for (const float edge : {-87.0f, 88.7f, 0.0f, -0.0f, -1e30f, 1e30f, 1e-30f}) x.push_back(edge);
  std::vector<float> expected(x.size());
  std::vector<float> actual(x.size());
  reference_.exp_sum(x.data(), static_cast<int64_t>(x.size()), 0.0f, expected.data());
  simd_->exp_sum(x.data(), static_cast<int64_t>(x.size()), 0.0f, actual.data());
  EXPECT_TRUE(SameBytes(expected, actual));
}

// Log-probabilities where p rounds to 0 or is none, and the edges of that.
TEST_P(CpuSimd, DivergenceOverItsWholeRange) {
  std::vector<float> x;
  for (float value = -760.0f; value <= 0.0f; value += 0.0713f) x.push_back(value);
  for (const float edge : {-700.0f, -699.99994f, -700.00006f, 0.0f, -0.0f, -1e-30f, -1e30f, -3e38f}) x.push_back(edge);
  const std::vector<float> own = RandomFloats(random_, static_cast<int64_t>(x.size()), 100.0f);
  for (size_t first = 0; first + 300 < x.size(); first += 77) {
    for (const int64_t n : {1, 3, 8, 300}) {
      EXPECT_EQ(DoubleToBits(simd_->divergence(x.data() + first, {}, own.data() + first, {}, n)),
                DoubleToBits(reference_.divergence(x.data() + first, {}, own.data() + first, {}, n)))
          << first << ", " << n;
    }
  }
  const auto all = static_cast<int64_t>(x.size());
  EXPECT_EQ(DoubleToBits(simd_->divergence(x.data(), {}, own.data(), {}, all)),
            DoubleToBits(reference_.divergence(x.data(), {}, own.data(), {}, all)));
}

INSTANTIATE_TEST_SUITE_P(Variants, CpuSimd, testing::Values("avx2", "avx512bw", "avx512vbmi", "neon"),
                         [](const auto& spec) { return std::string(spec.param); });

TEST(CpuSimdChoice, UnknownNamesAreErrors) {
  EXPECT_EQ(SelectSimd("scalar").name, "scalar");
  EXPECT_EQ(SelectSimd("").name, SupportedSimd().back());
  test::ExpectInvalid([] { SelectSimd("sse9"); }, {"sse9", "scalar"});
}

}  // namespace
}  // namespace stoch::cpu
