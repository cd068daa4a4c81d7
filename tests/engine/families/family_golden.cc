// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/families/family_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/generate.h"
#include "tests/engine/logits_cases.h"
#include "tests/engine/prompt_logits.h"

namespace stoch::test {
namespace {

constexpr int kPrompts = 3;

std::string Key(int prompt, const std::string& what) { return "exact." + std::to_string(prompt) + '.' + what; }

}  // namespace

std::vector<float> FamilyGolden::F32(int prompt, const std::string& what) const {
  return file_.CopyF32(file_.Require(Key(prompt, what)));
}

std::vector<int32_t> FamilyGolden::I32(int prompt, const std::string& what) const {
  return file_.CopyI32(file_.Require(Key(prompt, what)));
}

EngineOptions ExactFamilyOptions() {
  EngineOptions options = OptionsOf({"fp32", Precision::kFp32, ""});
  options.context = 352;
  options.max_pass_rows = 300;
  return options;
}

void ExpectFamilyGolden(const std::shared_ptr<Backend>& backend, const std::filesystem::path& folder,
                        const std::filesystem::path& golden_file) {
  SCOPED_TRACE(folder.filename().string());
  const FamilyGolden golden(golden_file);
  ModelFiles files = OpenModelFiles(folder.string());
  EngineOptions options = ExactFamilyOptions();
  options.context = std::min(options.context, files.config.max_position_embeddings);
  options.max_pass_rows = std::min(options.max_pass_rows, options.context);
  const auto engine = Engine::Open(backend, std::move(files), options);
  const auto vocab = static_cast<size_t>(engine->config().vocab_size);
  for (int prompt = 0; prompt < kPrompts; ++prompt) {
    SCOPED_TRACE(prompt);
    const std::vector<int32_t> ids = golden.I32(prompt, "ids");
    const std::vector<float> logits = PromptLogits(*engine, ids);
    const std::vector<float> expected = golden.F32(prompt, "logits");
    const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
    const double of_range = 1e-4 * (static_cast<double>(*high) - static_cast<double>(*low));
    ASSERT_GT(of_range, 1e-3);
    // GELU by erf in place of tanh moves logits by 2e-3 alone.
    const bool has_gelu = engine->config().HasGelu();
    const double tolerance = has_gelu ? std::min(5e-4, of_range) : of_range;
    const float* ours = logits.data() + (logits.size() - expected.size());
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(ours[i]) - static_cast<double>(expected[i])));
    }
    EXPECT_LE(worst, tolerance);
    const std::vector<int32_t> argmax = golden.I32(prompt, "argmax");
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(HostArgmax(std::span(logits).subspan(i * vocab, vocab)), argmax[i]) << i;
    }
    const std::vector<int32_t> greedy = golden.I32(prompt, "greedy");
    GenerateRequest request;
    request.prompt = ids;
    request.max_tokens = static_cast<int64_t>(greedy.size() - ids.size());
    request.ignore_eos = true;
    std::vector<int32_t> text = ids;
    const std::vector<int32_t> generated = Generate(*engine, nullptr, request).ids;
    text.insert(text.end(), generated.begin(), generated.end());
    EXPECT_EQ(text, greedy);
  }
}

}  // namespace stoch::test
