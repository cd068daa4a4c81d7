// SPDX-License-Identifier: Apache-2.0
// Three trained Llamas against transformers' own results (llama_MODEL_golden.safetensors of the reference data).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/generate.h"
#include "engine/logprobs.h"
#include "loader/checkpoint/safetensors.h"
#include "tests/engine/logits_cases.h"
#include "tests/engine/prompt_logits.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"

namespace stoch::test {
namespace {

constexpr int kPrompts = 3;

struct Golden {
  explicit Golden(const std::string& model)
      : file(SharedFolder() / "goldens" / ("llama_" + model + "_golden.safetensors")) {}
  std::vector<float> F32(const std::string& name) const { return file.CopyF32(file.Require(name)); }
  std::vector<int32_t> I32(const std::string& name) const { return file.CopyI32(file.Require(name)); }
  SafetensorsFile file;
};

std::string Key(const char* config, int prompt, const char* what) {
  return std::string(config) + '.' + std::to_string(prompt) + '.' + what;
}

std::vector<double> PromptLogprobs(const std::vector<float>& logits, const std::vector<int32_t>& ids) {
  const size_t vocab = logits.size() / ids.size();
  std::vector<double> logprobs;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const std::span<const float> row(logits.data() + i * vocab, vocab);
    logprobs.push_back(ComputeLogSum(row).LogProb(row[static_cast<size_t>(ids[i + 1])]));
  }
  return logprobs;
}

// |a - b| / |b| over vectors.
template <typename A, typename B>
double RelativeError(const A& a, const B& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

template <typename T>
std::span<const T> Last(const std::vector<T>& values, size_t count) {
  return std::span<const T>(values).last(count);
}

class TrainedModels : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { STOCH_REQUIRE_SHARED(); }
};

TEST_P(TrainedModels, ExactLogitsAndGreedyTextAreThoseOfTransformers) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedLogitsModels()) {
    SCOPED_TRACE(name);
    const Golden golden(name);
    const auto engine = OpenCase(backend, SharedLogitsModel(name).folder, {"fp32", Precision::kFp32, ""});
    const auto vocab = static_cast<size_t>(engine->config().vocab_size);
    for (int prompt = 0; prompt < kPrompts; ++prompt) {
      SCOPED_TRACE(prompt);
      const std::vector<int32_t> ids = golden.I32(Key("exact", prompt, "ids"));
      const std::vector<float> logits = PromptLogits(*engine, ids);
      const std::vector<float> expected = golden.F32(Key("exact", prompt, "last_logits"));
      const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
      const double tolerance = 1e-4 * (static_cast<double>(*high) - static_cast<double>(*low));
      ASSERT_GT(tolerance, 1e-4);
      double worst = 0;
      for (size_t i = 0; i < vocab; ++i) {
        const double ours = static_cast<double>(Last(logits, vocab)[i]);
        worst = std::max(worst, std::abs(ours - static_cast<double>(expected[i])));
      }
      EXPECT_LE(worst, tolerance);

      const std::vector<double> logprobs = PromptLogprobs(logits, ids);
      const std::vector<float> expected_logprobs = golden.F32(Key("exact", prompt, "logprob"));
      ASSERT_EQ(logprobs.size(), expected_logprobs.size());
      for (size_t i = 0; i < logprobs.size(); ++i) {
        EXPECT_NEAR(logprobs[i], static_cast<double>(expected_logprobs[i]), 2 * tolerance) << i;
      }
      const std::vector<int32_t> argmax = golden.I32(Key("exact", prompt, "argmax"));
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(HostArgmax(std::span(logits).subspan(i * vocab, vocab)), argmax[i]) << i;
      }
    }
    GenerateRequest request;
    request.prompt = golden.I32(Key("exact", 0, "ids"));
    const std::vector<int32_t> greedy = golden.I32(Key("exact", 0, "greedy"));
    request.max_tokens = static_cast<int64_t>(greedy.size() - request.prompt.size());
    request.ignore_eos = true;
    std::vector<int32_t> text = request.prompt;
    const std::vector<int32_t> generated = Generate(*engine, nullptr, request).ids;
    text.insert(text.end(), generated.begin(), generated.end());
    EXPECT_EQ(text, greedy);
  }
}

// SC logits cannot be compared one by one across float pipelines (a flipped rounding changes whole counts), but their
// distance from the exact ones must be that of the published simulator, averaged over prompts.
TEST_P(TrainedModels, ScErrorIsThatOfThePublishedSimulator) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const LogitsConfig configs[] = {
      {"sc_l256_linear", Precision::kSc, "preset=published,attention=exact"},
      {"sc_l256_full", Precision::kSc, "preset=published"},
      {"sc_halve_full", Precision::kSc, "preset=halved,scramble_masks=256,attention=per_head"},
      {"sc_halve_l64_full", Precision::kSc, "preset=halved,scramble_masks=256,attention=per_head,stoc_len=64"},
  };
  for (const std::string& name : SharedLogitsModels()) {
    const Golden golden(name);
    for (const LogitsConfig& config : configs) {
      SCOPED_TRACE(name + ' ' + config.name);
      const auto engine = OpenCase(backend, SharedLogitsModel(name).folder, config);
      double error = 0, recorded_error = 0, logprob_error = 0, recorded_logprob_error = 0;
      for (int prompt = 0; prompt < kPrompts; ++prompt) {
        const std::vector<int32_t> ids = golden.I32(Key("exact", prompt, "ids"));
        const std::vector<float> exact = golden.F32(Key("exact", prompt, "last_logits"));
        const std::vector<float> exact_logprobs = golden.F32(Key("exact", prompt, "logprob"));
        const std::vector<float> logits = PromptLogits(*engine, ids);
        error += RelativeError(Last(logits, exact.size()), exact) / kPrompts;
        recorded_error += RelativeError(golden.F32(Key(config.name, prompt, "last_logits")), exact) / kPrompts;
        logprob_error += RelativeError(PromptLogprobs(logits, ids), exact_logprobs) / kPrompts;
        recorded_logprob_error +=
            RelativeError(golden.F32(Key(config.name, prompt, "logprob")), exact_logprobs) / kPrompts;
      }
      RecordProperty(name + '.' + config.name, std::to_string(error) + " vs " + std::to_string(recorded_error));
      EXPECT_LE(error, 1.5 * recorded_error);
      EXPECT_LE(logprob_error, 1.5 * recorded_logprob_error);
      // An SC run that is much better than the published one did not run in SC.
      EXPECT_GE(error, recorded_error / 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TrainedModels, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
