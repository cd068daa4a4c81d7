// SPDX-License-Identifier: Apache-2.0
// A model with mixed lengths, smoothing, masks and tables: what must be the same bits, and what must not.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/registry.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "research/sc_files.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr const char* kOps[] = {"q_proj",  "k_proj",    "v_proj", "o_proj", "gate_proj",
                                "up_proj", "down_proj", "qk",     "av"};

class MixedModel : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  std::string Write(const std::string& name, const std::string& text) {
    const auto path = scratch_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }

  // A table whose every operator has the bucket `bucket`.
  std::string Table(const std::string& levels, const std::string& bucket) {
    std::string defaults;
    for (const char* op : kOps) defaults += (defaults.empty() ? "\"" : ", \"") + std::string(op) + "\": " + bucket;
    return Write("mp.json", R"({"stoc_len_levels": )" + levels + R"(, "operator_defaults": {)" + defaults + "}}");
  }

  // Logits of every row of a sequence of 40 tokens, in passes of `rows`, next to `others` others.
  std::vector<float> Logits(std::shared_ptr<Backend> backend, const std::string& settings, const ScFileOptions& files,
                            int64_t rows = 64, int others = 0) {
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    ReadScFiles(files, &options.sc);
    options.max_pass_rows = 128;
    options.max_sequences = 4;
    const auto engine = Engine::Open(std::move(backend), OpenModelFiles(scratch_.path().string()), options);
    std::vector<std::unique_ptr<Sequence>> company;
    for (int i = 0; i < others; ++i) {
      company.push_back(engine->NewSequence(64));
      company.back()->Append(std::vector<int32_t>(3, 7 + i));
    }
    const auto sequence = engine->NewSequence(64);
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + 5) % 96);
    sequence->Append(ids);
    std::vector<float> all;
    bool first = true;
    while (sequence->pending() > 0) {
      std::vector<StepItem> items;
      int64_t before = 0;
      for (const auto& other : company) {
        if (!first) break;
        items.push_back({other.get(), 3, StepOutput::kAll});
        before += 3;
      }
      const int64_t now = std::min(rows, sequence->pending());
      items.push_back({sequence.get(), now, StepOutput::kAll});
      first = false;
      engine->Step(items);
      std::vector<float> logits(static_cast<size_t>(now) * 96);
      engine->ReadLogits(before, now, logits.data());
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  static bool Same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  TempDir scratch_;
};

constexpr const char* kMixedModes[] = {"attention=per_token", "attention=per_row", "attention=per_head"};

constexpr const char* kSpread = R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 2})";

TEST_P(MixedModel, OneLevelForAllIsTheUniformRun) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  // Thresholds of 0: every row has the first level.
  const std::string mp = Table("[96, 32]", R"({"thresholds": [0], "metric_lo": 0, "metric_hi": 1})");
  for (const char* mode : kMixedModes) {
    const auto mixed = Logits(backend, mode, {.mp = mp});
    EXPECT_TRUE(Same(mixed, Logits(backend, std::string(mode) + ",stoc_len=96", {}))) << mode;
    EXPECT_FALSE(Same(mixed, Logits(backend, std::string(mode) + ",stoc_len=32", {}))) << mode;
  }
}

TEST_P(MixedModel, FixedLengthsDependOnTheirRowAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::string mp = Table("[128, 24]", kSpread);
  const auto whole = Logits(backend, "preset=halved", {.mp = mp});
  EXPECT_FALSE(Same(whole, Logits(backend, "stoc_len=128", {})));
  EXPECT_FALSE(Same(whole, Logits(backend, "stoc_len=24", {})));
  EXPECT_TRUE(Same(whole, Logits(backend, "preset=halved", {.mp = mp}, 7)));
  EXPECT_TRUE(Same(whole, Logits(backend, "preset=halved", {.mp = mp}, 64, 2)));
}

TEST_P(MixedModel, CallLengthsRunInEveryAttention) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::string mp = Table("[128, 24]", R"({"thresholds": [0.5]})");
  for (const char* mode : kMixedModes) {
    if (std::string(mode) == "attention=per_head") continue;
    const auto call = Logits(backend, mode, {.mp = mp, .mp_normalise = "call"});
    EXPECT_FALSE(Same(call, Logits(backend, mode, {})));
  }
  ExpectInvalid([&] { Logits(backend, "preset=halved", {.mp = mp}); }, {"metric_lo", "--mp-normalise call"});
}

TEST_P(MixedModel, ChunksHaveLengthsOfTheirOwn) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::string buckets;
  for (const char* op : kOps) {
    if (std::string(op) == "qk" || std::string(op) == "av") continue;
    buckets += (buckets.empty() ? "\"" : ", \"") + std::string(op) +
               R"(:t0:l0": {"levels": [16, 128], "thresholds": [0.5], "metric_lo": 0, "metric_hi": 3})";
  }
  const std::string mp =
      Write("chunks.json", R"({"stoc_len_levels": [128, 64], "per_row_chunk": {"buckets": {)" + buckets +
                               R"(}}, "operator_defaults": {"qk": )" + kSpread + R"(, "av": )" + kSpread + "}}");
  const auto whole = Logits(backend, "preset=halved", {.mp = mp});
  EXPECT_TRUE(Same(whole, Logits(backend, "preset=halved", {.mp = mp}, 9, 1)));
  EXPECT_FALSE(Same(whole, Logits(backend, "preset=halved", {})));
}

// An operator whose only length is 0 adds nothing, which is no error.
TEST_P(MixedModel, AnOperatorMayBePrunedWhole) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::string defaults;
  for (const char* op : kOps) defaults += (defaults.empty() ? "\"" : ", \"") + std::string(op) + "\": " + kSpread;
  const auto with = [&](const std::string& levels, const std::string& thresholds) {
    const std::string mp =
        Write("pruned.json", R"({"stoc_len_levels": [128, 64], "operator_defaults": {)" + defaults +
                                 R"(}, "per_row_chunk": {"buckets": {"down_proj:t0:l0": {"levels": )" + levels +
                                 R"(, "thresholds": )" + thresholds + R"(, "metric_lo": 0, "metric_hi": 3}}}})");
    return Logits(backend, "preset=halved", {.mp = mp});
  };
  const auto pruned = with("[0]", "[]");
  EXPECT_FALSE(Same(pruned, with("[128]", "[]")));
  EXPECT_TRUE(Same(pruned, with("[0, 128]", "[1]"))) << "u is never above 1";
}

TEST_P(MixedModel, TheExactTableIsInt8) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::string numbers;
  for (int a = -128; a < 128; ++a) {
    for (int b = -128; b < 128; ++b) numbers += std::to_string(a * b) + " ";
  }
  const std::string file = Write("exact.txt", numbers);
  const auto table = Logits(backend, "attention=exact,gate=table,table=" + file, {});
  EXPECT_TRUE(Same(table, Logits(backend, "attention=exact,arith=int8", {})));
  EXPECT_FALSE(Same(table, Logits(backend, "attention=exact,arith=int7", {})));
}

TEST_P(MixedModel, MasksAreSettings) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::string mask = Write("mask.json", R"({"format": "scmp_llm_hybrid_v1", "schedule": {
    "q_proj": ["int7", "sc"], "down_proj": ["fp", "int4"], "qk": ["sc", "int8"], "av": ["int6", "sc"]}})");
  const auto masked = Logits(backend, "preset=halved", {.mask = mask});
  EXPECT_TRUE(Same(masked, Logits(backend,
                                  "0.q_proj.arith=int7,0.down_proj.arith=fp,1.down_proj.arith=int4,"
                                  "1.qk.arith=int8,0.av.arith=int6",
                                  {})));
  EXPECT_FALSE(Same(masked, Logits(backend, "preset=halved", {})));
  EXPECT_TRUE(Same(masked, Logits(backend, "preset=halved", {.mask = mask}, 5, 1)));
  const std::string three = Write("three.json", R"({"schedule": {"qk": ["sc", "sc", "sc"]}})");
  ExpectInvalid([&] { Logits(backend, "preset=halved", {.mask = three}); }, {"schedule qk has 3 entries of 2"});
}

TEST_P(MixedModel, SmoothingDividesAndMultiplies) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto with = [&](float scale) {
    const auto path = scratch_.path() / "smooth.safetensors";
    StoredTensor tensor{"layers.1.q_proj", DType::kF32, {64}, std::vector<std::byte>(256)};
    for (size_t i = 0; i < 64; ++i) std::memcpy(tensor.bytes.data() + 4 * i, &scale, 4);
    WriteTensors(path, {tensor});
    return Logits(backend, "preset=halved", {.smooth = path.string()});
  };
  // A power of two scales quantized numbers exactly.
  EXPECT_TRUE(Same(with(4.0f), Logits(backend, "preset=halved", {})));
  EXPECT_FALSE(Same(with(3.0f), Logits(backend, "preset=halved", {})));
  ExpectInvalid([&] { with(0.0f); }, {"layers.1.q_proj[0] = 0", "above 0"});
}

TEST_P(MixedModel, ProtectedChannelsAreAProductOfTheirOwn) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto with = [&](const std::string& channels) {
    std::string defaults;
    for (const char* op : kOps) defaults += (defaults.empty() ? "\"" : ", \"") + std::string(op) + "\": " + kSpread;
    const std::string mp =
        Write("protected.json", R"({"stoc_len_levels": [128, 64], "operator_defaults": {)" + defaults +
                                    R"(}, "protected_channels": {"stoc_len": 128, "indices": {"q_proj:b0": )" +
                                    channels + "}}}");
    return Logits(backend, "preset=halved", {.mp = mp});
  };
  EXPECT_FALSE(Same(with("[1, 5]"), with("[]")));
  ExpectInvalid([&] { with("[64]"); }, {"protected_channels q_proj:b0 lists channel 64", "0..63"});
}

TEST_P(MixedModel, GridsFollowTheLengthOrTheTable) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto with = [&](const std::string& settings, const std::string& grids) {
    const std::string mp = Table("[96, 24]", kSpread);
    if (grids.empty()) return Logits(backend, settings, {.mp = mp});
    std::ifstream table(mp);
    std::string text((std::istreambuf_iterator<char>(table)), {});
    text.back() = ',';
    return Logits(backend, settings, {.mp = Write("grids.json", text + R"("per_rung_grid": {)" + grids + "}}")});
  };
  const auto pow2 = with("preset=halved,rng_grid=pow2", "");
  EXPECT_FALSE(Same(pow2, with("preset=halved", "")));
  EXPECT_TRUE(Same(pow2, with("preset=halved", R"("96": 64, "24": 16)")));
  EXPECT_TRUE(Same(with("preset=halved,rng_grid=pow2", R"("96": 128, "24": 128)"), with("preset=halved", "")))
      << "a table's grids win";
  // Row by row, in any batch.
  const std::string mp = Table("[96, 24]", kSpread);
  EXPECT_TRUE(Same(pow2, Logits(backend, "preset=halved,rng_grid=pow2", {.mp = mp}, 7, 2)));
  ExpectInvalid([&] { with("preset=halved", R"("96": 64)"); }, {"grids.json", "per_rung_grid.24", "no grid"});
  ExpectInvalid([&] { with("preset=halved", R"("96": 64, "24": 200)"); },
                {"grids.json", "per_rung_grid.24 = 200", "1..128"});
}

INSTANTIATE_TEST_SUITE_P(Backends, MixedModel, testing::ValuesIn(OneOfEachBackend()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch::test
