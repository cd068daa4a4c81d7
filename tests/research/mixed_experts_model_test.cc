// SPDX-License-Identifier: Apache-2.0
// A model with experts under mixed lengths and smoothing: what must be the same bits, and what must not.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/research/tiny_logits.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr const char* kOps[] = {"q_proj",  "k_proj",    "v_proj", "o_proj", "gate_proj",
                                "up_proj", "down_proj", "qk",     "av"};
constexpr const char* kSpread = R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 5})";
constexpr const char* kNothing = R"({"thresholds": [0], "metric_lo": 0, "metric_hi": 1})";   // all at the first level
constexpr const char* kShort = R"({"thresholds": [1], "metric_lo": 0, "metric_hi": 1000})";  // at the last one
constexpr int64_t kExperts = 4, kInner = 48;

class MixedExpertsModel : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.config.architecture = FindArchitecture("qwen3_moe");
    model.config.num_experts = kExperts;
    model.config.num_experts_per_tok = 2;
    model.config.moe_intermediate_size = kInner;
    model.config.sparse_layers = {true, false};
    WriteTinyModel(folder_.path(), model);
  }

  // A table of `levels` whose operators have the bucket `bucket`, but those in `own`.
  std::string Table(const std::string& levels, const std::string& bucket, const std::string& more = "",
                    const std::map<std::string, std::string>& own = {}) {
    std::string defaults;
    for (const char* op : kOps) {
      const auto found = own.find(op);
      defaults +=
          (defaults.empty() ? "\"" : ", \"") + std::string(op) + "\": " + (found == own.end() ? bucket : found->second);
    }
    const auto path = folder_.path() / ("mp" + std::to_string(++files_) + ".json");
    std::ofstream(path) << R"({"stoc_len_levels": )" << levels << R"(, "operator_defaults": {)" << defaults << "}"
                        << more << "}";
    return path.string();
  }
  std::string Protected(const std::string& indices) {
    return Table("[128, 24]", kSpread, R"(, "protected_channels": {"stoc_len": 100, "indices": {)" + indices + "}}");
  }
  std::vector<float> Mixed(const std::string& mp, const Way& way = {}) {
    return TinyLogits(folder_.path(), "preset=halved", {.mp = mp}, way);
  }
  // `values` by tensor, each [shape].
  std::vector<float> Smoothed(const std::string& name, const std::vector<int64_t>& shape,
                              const std::vector<float>& values) {
    const auto path = folder_.path() / "smooth.safetensors";
    StoredTensor tensor{name, DType::kF32, shape, std::vector<std::byte>(values.size() * 4)};
    std::memcpy(tensor.bytes.data(), values.data(), values.size() * 4);
    WriteTensors(path, {tensor});
    return TinyLogits(folder_.path(), "preset=halved", {.smooth = path.string()});
  }

  TempDir folder_;
  int files_ = 0;
};

TEST_F(MixedExpertsModel, OneLevelForAllIsTheUniformRun) {
  const auto mixed = Mixed(Table("[96, 32]", kNothing));
  EXPECT_TRUE(SameLogits(mixed, TinyLogits(folder_.path(), "stoc_len=96", {})));
  EXPECT_FALSE(SameLogits(mixed, TinyLogits(folder_.path(), "stoc_len=32", {})));
}

TEST_F(MixedExpertsModel, FixedLengthsDependOnTheirRowAlone) {
  const std::string mp = Protected(R"("gate_proj:b0:u1": [3, 9], "down_proj:b0": [4], "down_proj:b0:u2": [5, 6, 7])");
  const auto whole = Mixed(mp);
  EXPECT_FALSE(SameLogits(whole, TinyLogits(folder_.path(), "stoc_len=128", {})));
  EXPECT_TRUE(SameLogits(whole, Mixed(mp, {.rows = 7})));
  EXPECT_TRUE(SameLogits(whole, Mixed(mp, {.others = 3})));
  EXPECT_TRUE(SameLogits(whole, Mixed(mp, {.devices = 2})));
  EXPECT_TRUE(SameLogits(whole, Mixed(mp, {.variant = "scalar"})));
}

// In layer 0 up_proj has the rows of gate_proj; layer 1 is dense.
TEST_F(MixedExpertsModel, GateAndUpShareTheLengthsOfARow) {
  const auto alike = Mixed(Table("[128, 24]", kSpread));
  const auto buckets = [&](const std::string& up_of_layer_0, const std::string& gate_of_layer_0) {
    return Mixed(Table("[128, 24]", kSpread,
                       R"(, "layer_buckets": 2, "buckets": {"up_proj:t0:l0": )" + up_of_layer_0 +
                           R"(, "gate_proj:t0:l0": )" + gate_of_layer_0 + "}"));
  };
  EXPECT_TRUE(SameLogits(alike, buckets(kNothing, kSpread))) << "that of up_proj has no effect";
  const auto longest = buckets(kSpread, kNothing);
  EXPECT_FALSE(SameLogits(alike, longest));
  EXPECT_TRUE(SameLogits(longest, buckets(kNothing, kNothing)));
  EXPECT_FALSE(SameLogits(alike, Mixed(Table("[128, 24]", kSpread, "", {{"up_proj", kShort}})))) << "layer 1";
}

TEST_F(MixedExpertsModel, ChannelsOfAnExpertComeBeforeThoseOfAll) {
  const auto all = Mixed(Protected(R"("up_proj:b0": [3, 9])"));
  EXPECT_TRUE(SameLogits(all, Mixed(Protected(R"("up_proj:b0:u0": [3, 9], "up_proj:b0:u1": [9, 3],
    "up_proj:b0:u2": [3, 9], "up_proj:b0:u3": [3, 9])"))));
  EXPECT_TRUE(SameLogits(all, Mixed(Protected(R"("up_proj:b0": [3, 9], "up_proj:b0:u2": [3, 9])"))));
  EXPECT_FALSE(SameLogits(all, Mixed(Protected(R"("up_proj:b0": [3, 9], "up_proj:b0:u2": [5])"))));
  EXPECT_FALSE(SameLogits(all, Mixed(Protected(R"("up_proj:b0": [3, 9], "up_proj:b0:u2": [])"))));
  // A dense layer has no experts: its units are one.
  EXPECT_TRUE(SameLogits(Mixed(Protected(R"("up_proj:b1:u0": [3], "up_proj:b1:u9": [8])")),
                         Mixed(Protected(R"("up_proj:b1": [3, 8])"))));
  ExpectInvalid([&] { Mixed(Protected(R"("up_proj:b0:u4": [3])")); }, {"up_proj:b0:u4", "experts 0..3"});
  ExpectInvalid([&] { Mixed(Protected(R"("down_proj:b0:u1": [48])")); },
                {"protected_channels down_proj:b0", "channel 48", "0..47"});
}

TEST_F(MixedExpertsModel, FactorsAreOfAllExpertsOrOfEach) {
  const auto plain = TinyLogits(folder_.path(), "preset=halved", {});
  std::vector<float> one, each;
  for (int i = 0; i < kInner; ++i) one.push_back(0.7f + 0.02f * static_cast<float>(i));
  for (int64_t e = 0; e < kExperts; ++e) each.insert(each.end(), one.begin(), one.end());
  const auto all = Smoothed("layers.0.down_proj", {kInner}, one);
  EXPECT_FALSE(SameLogits(all, plain));
  EXPECT_TRUE(SameLogits(all, Smoothed("layers.0.down_proj", {kExperts, kInner}, each)));
  each[static_cast<size_t>(2 * kInner + 5)] = 3.0f;
  EXPECT_FALSE(SameLogits(all, Smoothed("layers.0.down_proj", {kExperts, kInner}, each)));
  // A power of two scales quantized numbers exactly, another one for every expert.
  for (size_t i = 0; i < each.size(); ++i) each[i] = static_cast<float>(1 << (i / kInner));
  EXPECT_TRUE(SameLogits(plain, Smoothed("layers.0.down_proj", {kExperts, kInner}, each)));
  ExpectInvalid(
      [&] {
        Smoothed("layers.0.down_proj", {3, kInner}, std::vector<float>(3 * kInner, 1.0f));
      },
      {"layers.0.down_proj of 144 factors", "no linear"});
  ExpectInvalid(
      [&] {
        Smoothed("layers.1.down_proj", {4, 172}, std::vector<float>(4 * 172, 1.0f));
      },
      {"layers.1.down_proj of 688 factors", "no linear"});
}

TEST_F(MixedExpertsModel, CallsAndChunksRun) {
  const std::string by_call = Table("[128, 24]", R"({"thresholds": [0.5]})");
  const auto call = TinyLogits(folder_.path(), "preset=halved", {.mp = by_call, .mp_normalise = "call"});
  EXPECT_FALSE(SameLogits(call, TinyLogits(folder_.path(), "preset=halved", {})));
  const ScFileOptions files{.mp = by_call, .mp_normalise = "call"};
  EXPECT_TRUE(SameLogits(TinyLogits(folder_.path(), "attention=exact", files),
                         TinyLogits(folder_.path(), "attention=exact", files, {.devices = 2})));
  const std::string chunks =
      Table("[128, 24]", kSpread, R"(, "per_row_chunk": {"buckets": {"gate_proj:t0:l0": {"levels": [16, 128],
    "thresholds": [0.5], "metric_lo": 0, "metric_hi": 3}}})");
  const auto by_chunk = TinyLogits(folder_.path(), "chunk_d=32", {.mp = chunks});
  EXPECT_FALSE(SameLogits(by_chunk, TinyLogits(folder_.path(), "chunk_d=32", {.mp = Table("[128, 24]", kSpread)})));
  EXPECT_TRUE(SameLogits(by_chunk, TinyLogits(folder_.path(), "chunk_d=32", {.mp = chunks}, {.rows = 9, .others = 1})));
  ExpectInvalid([&] { Mixed(by_call); }, {"metric_lo", "--mp-normalise call"});
}

}  // namespace
}  // namespace stoch::test
