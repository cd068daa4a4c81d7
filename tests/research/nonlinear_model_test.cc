// SPDX-License-Identifier: Apache-2.0
// Tables of functions: how they are made, and what a model makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "loader/research/nonlinear_file.h"
#include "research/calibrate/nonlinear_table.h"
#include "research/products/operator_digest.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/research/tiny_logits.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

TEST(NonlinearTable, HasTheValuesOfItsCutsAndChordsBetween) {
  const NonlinearTable silu = MakeNonlinearTable({.function = "silu", .segments = 16, .lo = -8, .hi = 8});
  ASSERT_EQ(silu.cuts.size(), 17u);
  for (size_t i = 0; i < silu.cuts.size(); ++i) EXPECT_EQ(silu.At(silu.cuts[i]), Silu(silu.cuts[i])) << i;
  EXPECT_FLOAT_EQ(silu.At(0.5f), Silu(1.0f) / 2);
  EXPECT_EQ(silu.At(-100.0f), Silu(-8.0f));
  EXPECT_EQ(silu.At(12.0f), Silu(8.0f) + 4.0f) << "above the last cut: the slope of the identity";
  const NonlinearTable exp = MakeNonlinearTable({.function = "exp", .segments = 4, .lo = -16, .hi = 0});
  EXPECT_EQ(exp.At(3.0f), 1.0f);
  EXPECT_EQ(exp.ExpAt(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_GT(exp.ExpAt(-1000.0f), 0.0f);
}

TEST(NonlinearTable, RoundsBothSidesToBinaryPlaces) {
  NonlinearTable table = MakeNonlinearTable({.function = "silu", .segments = 1, .lo = 0, .hi = 4});
  table.in_bits = 1;
  EXPECT_EQ(table.At(1.2f), table.At(1.0f));
  EXPECT_EQ(table.At(1.3f), table.At(1.5f));
  table.in_bits.reset();
  table.out_bits = -1;
  for (const float x : {0.0f, 0.3f, 1.7f, 3.9f}) EXPECT_EQ(std::fmod(table.At(x), 2.0f), 0.0f) << x;
}

TEST(NonlinearTable, ReciprocalRootsGoByPowersOfFour) {
  const NonlinearTable table = MakeNonlinearTable({.function = "rsqrt", .segments = 512, .lo = 1, .hi = 4});
  for (const float v : {1e-38f, 1e-5f, 0.25f, 0.99f, 1.0f, 3.99f, 4.0f, 5.0f, 1e6f, 1e38f}) {
    const float exact = 1.0f / std::sqrt(v);
    EXPECT_NEAR(table.RsqrtAt(v) / exact, 1.0f, 1e-5f) << v;
    if (v > 1e-37f && v < 1e37f) {
      EXPECT_EQ(table.RsqrtAt(v * 4.0f), table.RsqrtAt(v) / 2.0f) << v;
    }
  }
  EXPECT_EQ(table.RsqrtAt(0.0f), std::numeric_limits<float>::infinity());
}

TEST(NonlinearTable, WrongOrdersAreRefused) {
  ExpectInvalid([] { MakeNonlinearTable({.function = "gelu", .segments = 4, .lo = 0, .hi = 1}); },
                {"'gelu'", "silu, exp, rsqrt"});
  ExpectInvalid([] { MakeNonlinearTable({.function = "silu", .segments = 4096, .lo = 0, .hi = 1}); }, {"1..4095"});
  ExpectInvalid([] { MakeNonlinearTable({.function = "silu", .segments = 4, .lo = 1, .hi = 1}); }, {"--range", "rise"});
  ExpectInvalid([] { MakeNonlinearTable({.function = "rsqrt", .segments = 4, .lo = 0, .hi = 4}); }, {"above 0"});
  ExpectInvalid([] { MakeNonlinearTable({.function = "exp", .segments = 4, .lo = 0, .hi = 100}); }, {"exp at"});
  ExpectInvalid([] { MakeNonlinearTable({.function = "silu", .segments = 4095, .lo = 1e8, .hi = 1e8 + 1}); },
                {"--segments"});
  ExpectInvalid([] { MakeNonlinearTable({.function = "exp", .segments = 4, .lo = -1, .hi = 0, .in_bits = 21}); },
                {"--in-bits 21", "-8..20"});
}

class NonlinearModel : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  // The setting of a table of so many chords.
  std::string Table(const std::string& setting, int segments) {
    const bool silu = setting == "silu", softmax = setting == "softmax";
    const NonlinearPieces pieces{.function = silu ? "silu" : (softmax ? "exp" : "rsqrt"),
                                 .segments = segments,
                                 .lo = silu ? -8.0 : (softmax ? -16.0 : 1.0),
                                 .hi = silu ? 8.0 : (softmax ? 0.0 : 4.0)};
    const auto path = scratch_.path() / (setting + std::to_string(segments));
    WriteNonlinearFile(path, MakeNonlinearTable(pieces), {});
    return setting + '=' + path.string();
  }
  std::string All(int segments) {
    return Table("silu", segments) + ',' + Table("softmax", segments) + ',' + Table("rms_norm", segments);
  }
  std::vector<float> Logits(const std::string& settings, const Way& way = {}) {
    return TinyLogits(scratch_.path(), settings, {}, way);
  }
  static double Distance(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i]) - b[i]);
    return sum / static_cast<double>(a.size());
  }

  TempDir scratch_;
};

constexpr const char* kModes[] = {"attention=per_token", "attention=exact", "attention=per_row", "attention=per_head",
                                  "attention=dilated,segments=16:32,dilation=1:2"};

TEST_F(NonlinearModel, EachTableIsReadInEveryAttentionAndFineOnesAreNearlyExact) {
  for (const std::string mode : kModes) {
    const std::vector<float> exact = Logits(mode);
    for (const char* setting : {"silu", "softmax", "rms_norm"}) {
      const double coarse = Distance(exact, Logits(mode + ',' + Table(setting, 2)));
      const double fine = Distance(exact, Logits(mode + ',' + Table(setting, 4095)));
      EXPECT_GT(coarse, 0) << mode << ' ' << setting;
      EXPECT_LT(fine, coarse / 2) << mode << ' ' << setting;
    }
  }
}

TEST_F(NonlinearModel, BitsDoNotDependOnBatchCutDevicesOrVariant) {
  for (const std::string mode : {kModes[0], kModes[1]}) {
    const std::string settings = mode + ",stoc_len=64," + All(16);
    const std::vector<float> whole = Logits(settings);
    EXPECT_FALSE(SameLogits(whole, Logits(mode + ",stoc_len=64"))) << mode;
    for (const Way& way :
         {Way{.rows = 1}, Way{.rows = 7, .others = 2}, Way{.devices = 2}, Way{.devices = 2, .dealt = true},
          Way{.rows = 1, .devices = 2, .dealt = true}, Way{.variant = "scalar"}}) {
      EXPECT_TRUE(SameLogits(whole, Logits(settings, way)))
          << mode << ' ' << way.rows << " rows of " << way.devices << " devices, dealt: " << way.dealt;
    }
  }
}

TEST_F(NonlinearModel, AGpuHasTheBitsOfACpu) {
  STOCH_CUDA_OR_SKIP();
  for (const std::string mode : kModes) {
    for (const std::string& tables : {Table("silu", 16), Table("softmax", 16), Table("rms_norm", 16), All(12)}) {
      const std::string settings = mode + ",stoc_len=64," + tables;
      const std::vector<float> expected = Logits(settings);
      EXPECT_TRUE(SameLogits(expected, Logits(settings, {.on_gpu = true}))) << settings;
      if (mode.find("per_row") != std::string::npos || mode.find("per_head") != std::string::npos) continue;
      EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 1, .on_gpu = true}))) << settings << ", steps";
      EXPECT_TRUE(SameLogits(expected, Logits(settings, {.rows = 7, .others = 4, .on_gpu = true}))) << settings;
    }
  }
}

TEST_F(NonlinearModel, TheConfigurationNamesThemByTheirContents) {
  ScModelConfig config = ParseScModelConfig(std::vector<std::string>{Table("silu", 4)});
  ReadScFiles({}, &config);
  ASSERT_EQ(config.tables.silu.name.size(), 16u);
  const std::string text = Describe(config);
  EXPECT_EQ(text, "preset=halved,silu=" + config.tables.silu.name);
  EXPECT_EQ(ParseScModelConfig(std::vector<std::string>{text}), config);
  EXPECT_NE(config, ScModelConfig(HalvedScModelConfig()));
  EXPECT_NE(OperatorsSha256(config, TinyLlamaConfig()), OperatorsSha256(HalvedScModelConfig(), TinyLlamaConfig()));
  ScModelConfig other = ParseScModelConfig(std::vector<std::string>{Table("silu", 5)});
  ReadScFiles({}, &other);
  EXPECT_NE(config, other);
}

TEST_F(NonlinearModel, WrongSettingsAreRefused) {
  ExpectInvalid([&] { Logits("0." + Table("silu", 4)); }, {"0.silu", "for the whole model"});
  ExpectInvalid([&] { Logits("softmax=" + Table("silu", 4).substr(5)); }, {"function = ", "silu", "allowed is exp"});
  ExpectInvalid([&] { Logits("silu=nowhere"); }, {"nowhere"});
}

}  // namespace
}  // namespace stoch::test
