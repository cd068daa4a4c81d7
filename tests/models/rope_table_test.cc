// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/rope_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace stoch {
namespace {

DecoderConfig Llama31() {
  DecoderConfig config;
  config.head_dim = 128;
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{};
  return config;
}

TEST(RopeTable, FrequenciesArePowersOfTheta) {
  DecoderConfig config;
  config.head_dim = 16;
  config.rope_theta = 10000;
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  ASSERT_EQ(frequencies.size(), 8u);
  EXPECT_EQ(frequencies[0], 1.0f);
  EXPECT_EQ(frequencies[4], 0.01f);
  for (size_t i = 0; i < 8; ++i) {
    const double exact = std::pow(10000.0, -static_cast<double>(i) / 8);
    EXPECT_NEAR(frequencies[i], exact, 1.2e-7 * exact);
  }
}

// Llama 3.1: wavelengths below 8192 / 4 stay, those above 8192 / 1 are slowed 8 times, those between are blended.
TEST(RopeTable, Llama3ScalingHasThreeBands) {
  DecoderConfig plain = Llama31();
  plain.rope_scaling.reset();
  const std::vector<float> base = RopeInverseFrequencies(plain);
  const std::vector<float> scaled = RopeInverseFrequencies(Llama31());
  int kept = 0, blended = 0, slowed = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double wavelength = 2 * std::acos(-1.0) / base[i];
    const double ratio = static_cast<double>(scaled[i]) / base[i];
    if (wavelength < 2048) {
      EXPECT_EQ(scaled[i], base[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_EQ(scaled[i], base[i] / 8);
      ++slowed;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(ratio, (1 - smooth) / 8 + smooth, 1e-5);
      ++blended;
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(slowed, 29);
}

TEST(RopeTable, LinearScalingDividesEveryFrequency) {
  DecoderConfig plain;
  plain.head_dim = 16;
  DecoderConfig scaled = plain;
  scaled.rope_scaling = LinearRopeScaling{4};
  const std::vector<float> base = RopeInverseFrequencies(plain);
  const std::vector<float> frequencies = RopeInverseFrequencies(scaled);
  for (size_t i = 0; i < base.size(); ++i) EXPECT_EQ(frequencies[i], base[i] / 4);
}

// The formula of transformers' _compute_yarn_parameters, evaluated in Python.
TEST(RopeTable, YarnBlendsABandAndScalesBothParts) {
  DecoderConfig config;
  config.head_dim = 16;
  config.rope_theta = 10000;
  YarnRopeScaling yarn;
  yarn.factor = 4;
  yarn.original_max_position_embeddings = 4096;
  yarn.attention_factor = 1.5;
  config.rope_scaling = yarn;
  const double whole[] = {1,       0.316227766017,   0.1,     0.0256935059889,
                          0.00625, 0.00138349647632, 0.00025, 7.90569415042e-05};
  const double cut[] = {1,       0.316227766017,   0.1, 0.028613608812, 0.00655697152113, 0.00128563203073,
                        0.00025, 7.90569415042e-05};
  for (const bool truncate : {true, false}) {
    yarn.truncate = truncate;
    config.rope_scaling = yarn;
    const std::vector<float> frequencies = RopeInverseFrequencies(config);
    for (size_t i = 0; i < 8; ++i) {
      const double expected = truncate ? whole[i] : cut[i];
      EXPECT_NEAR(frequencies[i], expected, 1e-6 * expected) << truncate << i;
    }
  }
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  const std::vector<float> table = MakeRopeTable(config, 3);
  const double angle = static_cast<double>(2.0f * frequencies[1]);
  EXPECT_NEAR(table[2 * 16 + 1], 1.5 * std::cos(angle), 1e-6);
  EXPECT_NEAR(table[2 * 16 + 8 + 1], 1.5 * std::sin(angle), 1e-6);
}

// 12 of 16 dimensions: the frequencies of a head of 12; the last two pairs of the 8 stay where they are.
TEST(RopeTable, PairsBehindTheRotatedPartPass) {
  DecoderConfig config;
  config.head_dim = 16;
  config.rotary_dim = 12;
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  const std::vector<float> table = MakeRopeTable(config, 6);
  for (size_t i = 0; i < 8; ++i) {
    const double exact = i < 6 ? std::pow(10000.0, -static_cast<double>(i) / 6) : 0.0;
    EXPECT_NEAR(frequencies[i], exact, 5e-7 * exact) << i;
    const float angle = 5.0f * frequencies[i];
    EXPECT_NEAR(table[5 * 16 + i], std::cos(static_cast<double>(angle)), 4e-8);
    EXPECT_NEAR(table[5 * 16 + 8 + i], std::sin(static_cast<double>(angle)), 4e-8);
  }
  EXPECT_EQ(table[5 * 16 + 7], 1.0f);
  EXPECT_EQ(table[5 * 16 + 15], 0.0f);
}

// The formula of transformers' _compute_longrope_parameters for sequences within the original context.
TEST(RopeTable, LongRopeDividesByShortFactorsAndScalesTheRotatedPart) {
  DecoderConfig plain;
  plain.head_dim = 16;
  plain.rotary_dim = 8;
  DecoderConfig scaled = plain;
  scaled.rope_scaling = LongRopeScaling{{1, 1.25, 2, 64}, 4096, 1.1902380714238083};
  const std::vector<float> base = RopeInverseFrequencies(plain);
  const std::vector<float> frequencies = RopeInverseFrequencies(scaled);
  const double factors[] = {1, 1.25, 2, 64};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(frequencies[i], base[i] / factors[i], 1e-7 * base[i]) << i;
  const std::vector<float> table = MakeRopeTable(scaled, 3);
  const double angle = static_cast<double>(2.0f * frequencies[1]);
  EXPECT_NEAR(table[2 * 16 + 1], 1.1902380714238083 * std::cos(angle), 1e-6);
  EXPECT_NEAR(table[2 * 16 + 8 + 1], 1.1902380714238083 * std::sin(angle), 1e-6);
  EXPECT_EQ(table[2 * 16 + 6], 1.0f);
}

TEST(RopeTable, RowsAreCosThenSinOfTheRoundedAngle) {
  const DecoderConfig config = Llama31();
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  constexpr int64_t kPositions = 3000;
  const std::vector<float> table = MakeRopeTable(config, kPositions);
  ASSERT_EQ(table.size(), static_cast<size_t>(kPositions * config.head_dim));
  for (const size_t position : {size_t{0}, size_t{1}, size_t{77}, size_t{2999}}) {
    for (size_t i = 0; i < 64; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      EXPECT_NEAR(table[position * 128 + i], std::cos(static_cast<double>(angle)), 4e-8);
      EXPECT_NEAR(table[position * 128 + 64 + i], std::sin(static_cast<double>(angle)), 4e-8);
    }
  }
  // Of a stripe: the rows of its positions.
  const Stripe stripe{2, 4};
  const std::vector<float> own = MakeRopeTable(config, stripe.Below(kPositions), stripe);
  ASSERT_EQ(own.size(), static_cast<size_t>(kPositions / 16 * 4 * config.head_dim));  // 3000 = 187 * 16 + 8
  for (int64_t row = 0; row < stripe.Below(kPositions); ++row) {
    const auto* const expected = table.data() + stripe.Absolute(row) * config.head_dim;
    EXPECT_TRUE(std::equal(expected, expected + config.head_dim, own.data() + row * config.head_dim)) << row;
  }
}

}  // namespace
}  // namespace stoch
