// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "engine/logprobs.h"
#include "kernels/base/error.h"
#include "kernels/registry.h"

namespace stoch {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};

// The token that the CPU backend picks; the first `prompt_tokens` of the history are the prompt.
int32_t Pick(const SamplingOptions& options, int64_t position = 0, const std::vector<int32_t>& history = {},
             int64_t prompt_tokens = 0) {
  static const std::shared_ptr<Backend> backend = OpenBackend("cpu", {}, nullptr);
  const Device device = backend->devices().front();
  const auto vocab = static_cast<int64_t>(kLogits.size());
  static const auto buffer = backend->MakeLogitQueries(device, {vocab, 1, 1, 100});
  TokenCounts counts;
  counts.AddPrompt(std::span(history).first(static_cast<size_t>(prompt_tokens)));
  for (const int32_t id : std::span(history).subspan(static_cast<size_t>(prompt_tokens))) counts.AddGenerated(id);
  std::vector<float> logits = kLogits;
  backend->UploadLogitQueries(*buffer, {{MakePick(options, counts.entries(), position)}, {}});
  backend->PickTokens({MakeView(logits.data(), DType::kF32, device, 1, vocab), 0}, *buffer, {0, 1});
  return buffer->picked()[0];
}

std::map<int32_t, int> Histogram(const SamplingOptions& options, int draws = 20000) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[Pick(options, i)];
  return counts;
}

TEST(Sampler, GreedyTiesGoToTheLowerId) { EXPECT_EQ(Pick({}), 1); }

TEST(Sampler, DrawsFollowTheSoftmax) {
  SamplingOptions options;
  options.temperature = 1.5;
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit / 1.5);
  const std::map<int32_t, int> counts = Histogram(options);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i] / 1.5) / total;
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(counts.at(static_cast<int32_t>(i)), 20000 * p, 5 * std::sqrt(20000 * p * (1 - p))) << i;
  }
}

TEST(Sampler, DrawsAreAFunctionOfSeedChoiceAndPosition) {
  SamplingOptions a;
  a.temperature = 1;
  SamplingOptions seed = a, choice = a;
  seed.seed = 1;
  choice.choice = 1;
  int seed_differs = 0, choice_differs = 0, position_differs = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(Pick(a, i), Pick(a, i));
    seed_differs += Pick(a, i) != Pick(seed, i);
    choice_differs += Pick(a, i) != Pick(choice, i);
    position_differs += Pick(a, i) != Pick(a, i + 1);
  }
  EXPECT_GT(seed_differs, 50);
  EXPECT_GT(choice_differs, 50);
  EXPECT_GT(position_differs, 50);
}

TEST(Sampler, FiltersKeepTheMostLikely) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 3;
  EXPECT_EQ(Histogram(options, 2000).size(), 3u);
  options.top_k = 1;
  EXPECT_EQ(Histogram(options, 200), (std::map<int32_t, int>{{1, 200}}));  // the tie with id 3 goes to the lower
  options.top_k = 0;
  // p = 0.378, 0.378, 0.139, 0.051, 0.031, 0.007 * ...: half needs both of the tied leaders.
  options.top_p = 0.5;
  EXPECT_EQ(Histogram(options, 2000).size(), 2u);
  options.top_p = 1e-9;
  EXPECT_EQ(Histogram(options, 200).size(), 1u);
  options.top_p = 1;
  options.min_p = 0.3;  // exp(-1) = 0.37 stays, exp(-2) = 0.14 goes
  EXPECT_EQ(Histogram(options, 2000).size(), 3u);
}

TEST(Sampler, PenaltiesAndBiasMoveTheArgmax) {
  SamplingOptions options;
  options.repeat_penalty = 2;
  EXPECT_EQ(Pick(options, 0, {1}, 1), 3);     // 3 -> 1.5, in the prompt too
  EXPECT_EQ(Pick(options, 0, {1, 3}, 2), 2);  // both halved: 2 leads
  options = {};
  options.presence_penalty = 1.5;
  EXPECT_EQ(Pick(options, 0, {1, 3}, 2), 1);  // prompt tokens do not count
  EXPECT_EQ(Pick(options, 0, {1, 3}, 0), 2);
  options = {};
  options.frequency_penalty = 0.4;
  EXPECT_EQ(Pick(options, 0, {1, 1, 3}, 0), 3);           // 2.2 against 2.6
  EXPECT_EQ(Pick(options, 0, {1, 1, 1, 3, 3, 3}, 0), 2);  // 1.8 against 2
  options = {};
  options.logit_bias = {{4, 10.0f}};
  EXPECT_EQ(Pick(options), 4);
  options.logit_bias = {{1, -100.0f}};
  EXPECT_EQ(Pick(options), 3);
}

// Kept token by token, counts are those of the whole history, and there is one entry for each token of it.
TEST(Sampler, CountsAreThoseOfTheHistory) {
  TokenCounts counts;
  std::map<int32_t, int32_t> expected;
  std::minstd_rand random(5);
  const auto next = [&] { return static_cast<int32_t>(random() % 40); };
  std::vector<int32_t> prompt(30);
  for (int32_t& id : prompt) expected[id = next()];
  counts.AddPrompt(prompt);
  for (int step = 0; step < 300; ++step) {
    const int32_t id = next();
    counts.AddGenerated(id);
    ++expected[id];
    std::map<int32_t, int32_t> kept;
    for (const TokenCount& count : counts.entries()) kept[count.id] = count.generated;
    ASSERT_EQ(kept, expected) << step;
    ASSERT_EQ(counts.entries().size(), expected.size()) << step;
  }
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<SamplingOptions> bad(16);
  bad[0].temperature = -1;
  bad[1].temperature = nan;
  bad[2].top_p = 0;
  bad[3].top_p = 1.1;
  bad[4].top_k = -1;
  bad[5].min_p = 2;
  bad[6].repeat_penalty = 0;
  bad[7].presence_penalty = nan;
  bad[8].frequency_penalty = nan;
  bad[9].logit_bias = {{6, 1.0f}};
  bad[10].logit_bias = {{-1, 1.0f}};
  bad[11].logit_bias = {{0, std::numeric_limits<float>::infinity()}};
  bad[12].temperature = 1e-46;     // 0 as a float
  bad[13].repeat_penalty = 1e-46;  // 0 as a float: NaN weights once
  bad[14].logit_bias = {{0, 1.0f}, {0, 2.0f}};
  bad[15].logit_bias.assign(1025, {0, 1.0f});
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_THROW(Validate(bad[i], 6), InvalidInput) << i;
  EXPECT_NO_THROW(Validate({}, 6));
}

TEST(Logprobs, NormaliseAndRankWithTiesToTheLowerId) {
  const LogSum sum = ComputeLogSum(kLogits);
  double total = 0;
  for (const float logit : kLogits) total += std::exp(sum.LogProb(logit));
  EXPECT_NEAR(total, 1, 1e-6);
  const auto top = TopLogProbs(kLogits, sum, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].first, 1);
  EXPECT_EQ(top[1].first, 3);
  EXPECT_EQ(top[2].first, 2);
  EXPECT_EQ(top[0].second, sum.LogProb(3.0f));
  EXPECT_EQ(TopLogProbs(kLogits, sum, 99).size(), kLogits.size());
}

}  // namespace
}  // namespace stoch
