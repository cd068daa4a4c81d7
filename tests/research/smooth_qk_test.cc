// SPDX-License-Identifier: Apache-2.0
// Factors that rebalance q and k after RoPE: when they change bits, and when they do not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "loader/checkpoint/safetensors_writer.h"
#include "research/sc_files.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/research/tiny_logits.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

class SmoothQk : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  // A factor for each channel of both layers, `of(i)` of channel i of the 2 KV heads, or of one for all.
  template <typename Factor>
  std::string Factors(const std::string& name, bool by_head, const Factor& of) {
    const std::vector<int64_t> shape = by_head ? std::vector<int64_t>{2, 16} : std::vector<int64_t>{16};
    const auto path = scratch_.path() / name;
    const std::vector<SafetensorsSpec> specs = {{"layers.0.qk", DType::kF32, shape},
                                                {"layers.1.qk", DType::kF32, shape}};
    SafetensorsWriter writer(path, specs, {});
    std::vector<float> factors;
    for (int i = 0; i < (by_head ? 32 : 16); ++i) factors.push_back(of(i));
    writer.Append(std::as_bytes(std::span(factors)));
    writer.Append(std::as_bytes(std::span(factors)));
    writer.Finish();
    return path.string();
  }
  static float Uneven(int i) { return 0.25f + 0.375f * static_cast<float>(i % 7); }

  std::vector<float> Logits(const std::string& settings, const ScFileOptions& files, const Way& way = {}) {
    return TinyLogits(scratch_.path(), settings, files, way);
  }
  static bool Same(const std::vector<float>& a, const std::vector<float>& b) { return SameLogits(a, b); }

  TempDir scratch_;
};

TEST_F(SmoothQk, FactorsThatAreOnePowerOfTwoChangeNoBit) {
  const std::string one = Factors("one", true, [](int) { return 1.0f; });
  const std::string two = Factors("two", false, [](int) { return 2.0f; });
  const std::string uneven = Factors("uneven", true, Uneven);
  for (const char* settings : {"stoc_len=64", "attention=per_row", "attention=per_head", "qk.arith=int8",
                               "attention=dilated,segments=16:32,dilation=1:2"}) {
    const std::vector<float> plain = Logits(settings, {});
    EXPECT_TRUE(Same(plain, Logits(settings, {.smooth = one}))) << settings;
    EXPECT_TRUE(Same(plain, Logits(settings, {.smooth = two}))) << settings;
    EXPECT_FALSE(Same(plain, Logits(settings, {.smooth = uneven}))) << settings;
  }
}

TEST_F(SmoothQk, ExactAttentionTakesNone) {
  const std::string uneven = Factors("uneven", true, Uneven);
  EXPECT_TRUE(Same(Logits("attention=exact", {}), Logits("attention=exact", {.smooth = uneven})));
  ScModelConfig config = ParseScModelConfig(std::vector<std::string>{"attention=exact"});
  const std::vector<std::string> notices = ReadScFiles({.smooth = uneven}, &config);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("factors of qk have no effect"), std::string::npos);
}

TEST_F(SmoothQk, BitsDoNotDependOnBatchCutOrDevices) {
  const std::string uneven = Factors("uneven", true, Uneven);
  const std::vector<float> whole = Logits("stoc_len=64", {.smooth = uneven});
  EXPECT_TRUE(Same(whole, Logits("stoc_len=64", {.smooth = uneven}, {.rows = 1})));
  EXPECT_TRUE(Same(whole, Logits("stoc_len=64", {.smooth = uneven}, {.rows = 7})));
  EXPECT_TRUE(Same(whole, Logits("stoc_len=64", {.smooth = uneven}, {.others = 2})));
  EXPECT_TRUE(Same(whole, Logits("stoc_len=64", {.smooth = uneven}, {.devices = 2})));
}

TEST_F(SmoothQk, AGpuHasTheBitsOfACpu) {
  STOCH_CUDA_OR_SKIP();
  const std::string uneven = Factors("uneven", true, Uneven);
  for (const char* settings : {"stoc_len=64", "attention=per_row", "attention=per_head", "qk.arith=int8",
                               "attention=dilated,segments=16:32,dilation=1:2"}) {
    const std::vector<float> expected = Logits(settings, {.smooth = uneven});
    EXPECT_TRUE(Same(expected, Logits(settings, {.smooth = uneven}, {.on_gpu = true}))) << settings;
    if (std::string(settings).find("per_") != std::string::npos) continue;  // a window depends on the cut
    EXPECT_TRUE(Same(expected, Logits(settings, {.smooth = uneven}, {.rows = 1, .on_gpu = true}))) << settings;
  }
}

TEST_F(SmoothQk, LengthsGoByQBeforeTheFactorsHoweverAPassIsDivided) {
  const std::string uneven = Factors("uneven", true, Uneven);
  std::string defaults;
  for (const char* op : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
    defaults += (defaults.empty() ? "\"" : ", \"") + std::string(op) +
                R"(": {"thresholds": [0.75, 0.5, 0.25], "metric_lo": 0, "metric_hi": 2})";
  }
  const auto mp = scratch_.path() / "mp.json";
  WriteFile(mp, R"({"stoc_len_levels": [128, 96, 48, 24], "operator_defaults": {)" + defaults + "}}");
  const ScFileOptions files{.mp = mp.string(), .smooth = uneven};
  const std::vector<float> whole = Logits("preset=halved", files);
  EXPECT_FALSE(Same(whole, Logits("preset=halved", {.mp = mp.string()}))) << "factors do nothing";
  for (const Way& way : {Way{.rows = 1}, Way{.rows = 7, .others = 2}, Way{.devices = 2}, Way{.rows = 7, .devices = 2},
                         Way{.devices = 2, .dealt = true}, Way{.rows = 1, .devices = 2, .dealt = true},
                         Way{.rows = 7, .others = 2, .devices = 4, .dealt = true}}) {
    EXPECT_TRUE(Same(whole, Logits("preset=halved", files, way)))
        << way.rows << " rows of " << way.devices << " devices, dealt: " << way.dealt;
  }
}

TEST_F(SmoothQk, OneHeadsFactorsAreThoseOfAll) {
  const std::string all = Factors("all", true, [](int i) { return Uneven(i % 16); });
  const std::string one = Factors("one", false, Uneven);
  std::string text;
  for (int i = 0; i < 16; ++i) text += (i > 0 ? ", " : "") + std::to_string(Uneven(i));
  const auto json = scratch_.path() / "published.json";
  WriteFile(json,
            R"({"format": "x", "scales": {"qk:b0": [)" + text + R"(], "qk:b1": [)" + text + R"(], "o_proj:b0": [1]}})");
  const std::vector<float> expected = Logits("stoc_len=64", {.smooth = all});
  EXPECT_TRUE(Same(expected, Logits("stoc_len=64", {.smooth = one})));
  EXPECT_TRUE(Same(expected, Logits("stoc_len=64", {.smooth = json.string()})));
  ScModelConfig config;
  const std::vector<std::string> notices = ReadScFiles({.smooth = json.string()}, &config);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find(R"(scales."o_proj:b0")"), std::string::npos) << notices[0];
}

TEST_F(SmoothQk, WrongFilesAreRefused) {
  const std::string qk = Factors("qk", true, Uneven);
  ExpectInvalid([&] { Logits("stoc_len=64", {.smooth = qk, .more_smooth = qk}); }, {"layers.0.qk is in", "too"});
  const auto refused = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    const auto path = scratch_.path() / "wrong.json";
    WriteFile(path, text);
    ExpectInvalid([&] { Logits("stoc_len=64", {.smooth = path.string()}); }, parts);
  };
  refused(R"({"scales": {"qk:b0": [1, 0]}})", {"wrong.json", R"(scales."qk:b0"[1])", "a finite number above 0"});
  refused(R"({"scales": {"qk:b0": [1, 2]}})", {"layers.0.qk of 2 factors"});
  refused(R"({"scales": {"qk:b7": [1]}})", {"layers.7.qk"});
  refused(R"({"scales": [1]})", {"scales", "an object"});
  refused("[]", {"the file", "an object"});
}

TEST_F(SmoothQk, TheConfigurationNamesBothFiles) {
  const std::string qk = Factors("qk", true, Uneven);
  const auto linear = scratch_.path() / "linear";
  const std::vector<SafetensorsSpec> specs = {{"layers.0.q_proj", DType::kF32, {64}}};
  SafetensorsWriter writer(linear, specs, {});
  const std::vector<float> ones(64, 1.0f);
  writer.Append(std::as_bytes(std::span(ones)));
  writer.Finish();
  ScModelConfig config;
  ReadScFiles({.smooth = linear.string(), .more_smooth = qk}, &config);
  EXPECT_EQ(config.files.smooth_sha.size(), 33u);
  EXPECT_EQ(config.files.smooth_sha[16], '+');
  EXPECT_EQ(config.files.smooth->scales.size(), 3u);
}

}  // namespace
}  // namespace stoch::test
