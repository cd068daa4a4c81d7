// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/speculation/speculation_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "engine/draft_model/draft_model.h"
#include "engine/speculation/ngram_drafts.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

class KnownDrafts final : public DraftSource {
 public:
  KnownDrafts(const Answers& answers, Drafts drafts) : answers_(answers), drafts_(drafts) {}

  std::vector<DraftedToken> Propose(std::span<const int32_t> ids, int64_t most) override {
    std::vector<DraftedToken> drafts;
    for (const auto& [prompt, answer] : answers_) {
      if (ids.size() < prompt.size() || !std::equal(prompt.begin(), prompt.end(), ids.begin())) continue;
      const size_t done = ids.size() - prompt.size();
      if (done > answer.size() ||
          !std::equal(ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end(), answer.begin()))
        continue;
      for (size_t i = done; i < answer.size() && static_cast<int64_t>(drafts.size()) < most; ++i) {
        const bool right = drafts_ == Drafts::kRight || (drafts_ == Drafts::kCut && i % 5 != 3);
        drafts.push_back({right ? answer[i] : static_cast<int32_t>((answer[i] + 1) % kTinyVocab), 1.0});
      }
      break;
    }
    return drafts;
  }

 private:
  const Answers& answers_;
  Drafts drafts_;
};

DraftFiles DraftFilesOf(const std::filesystem::path& folder) {
  return {OpenModelFiles(folder.string()), Precision::kSc, OptionsOf({"", Precision::kSc, ""}).sc};
}

void ExpectSame(const TokenLogprob& expected, const TokenLogprob& got, const std::string& where) {
  EXPECT_EQ(got.logprob, expected.logprob) << where;
  EXPECT_EQ(got.top, expected.top) << where;
}

}  // namespace

const char* DraftsName(Drafts drafts) {
  switch (drafts) {
    case Drafts::kRight: return "right";
    case Drafts::kWrong: return "wrong";
    case Drafts::kCut: return "cut";
    case Drafts::kNgram: return "ngram";
    case Drafts::kOwnModel: return "own_model";
    case Drafts::kOtherModel: return "other_model";
  }
  return "";
}

std::vector<Drafts> AllDrafts() {
  return {Drafts::kRight, Drafts::kWrong, Drafts::kCut, Drafts::kNgram, Drafts::kOwnModel, Drafts::kOtherModel};
}

int NumRequests() {
  const char* const asked = std::getenv("STOCH_TEST_REQUESTS");
  return asked != nullptr ? std::atoi(asked) : 24;
}

GenerateRequest RandomRequest(std::mt19937& random) {
  const auto chance = [&](double share) { return std::uniform_real_distribution<>(0, 1)(random) < share; };
  const auto up_to = [&](int most) { return std::uniform_int_distribution<>(0, most)(random); };
  GenerateRequest request;
  for (int i = 0, count = 2 + up_to(30); i < count; ++i) request.prompt.push_back(3 + up_to(91));
  request.max_tokens = 1 + up_to(40);
  request.ignore_eos = chance(0.7);
  if (chance(0.6)) request.sampling.temperature = 0.2 + up_to(10) / 10.0;
  if (chance(0.3)) request.sampling.top_k = 1 + up_to(20);
  if (chance(0.3)) request.sampling.top_p = 0.5 + up_to(5) / 10.0;
  if (chance(0.2)) request.sampling.min_p = 0.05;
  if (chance(0.2)) request.sampling.repeat_penalty = 1.3;
  if (chance(0.2)) request.sampling.presence_penalty = 0.5;
  if (chance(0.2)) request.sampling.frequency_penalty = 0.4;
  if (chance(0.2)) request.sampling.logit_bias = {{static_cast<int32_t>(3 + up_to(91)), 2.0f}};
  request.sampling.seed = static_cast<uint64_t>(up_to(1000));
  if (chance(0.4)) request.top_logprobs = up_to(5);
  if (chance(0.2) && request.top_logprobs >= 0) request.prompt_logprobs = true;
  if (chance(0.2)) request.stop = {std::string(1, static_cast<char>(' ' + 3 + up_to(91)))};
  if (chance(0.2)) request.stop_ids = {static_cast<int32_t>(3 + up_to(91))};
  if (chance(0.05)) request.hash_logits = true;
  return request;
}

EngineOptions SpeculationEngineOptions() {
  EngineOptions options = OptionsOf({"", Precision::kSc, ""});
  options.max_sequences = 8;
  options.kv_tokens = 0;
  return options;
}

DraftSourceMaker MakerOf(Drafts drafts, const Answers& answers, const std::shared_ptr<Backend>& backend,
                         const std::filesystem::path& folder, const std::filesystem::path& scratch) {
  if (drafts == Drafts::kNgram) return [] { return std::make_unique<NgramDrafts>(); };
  if (drafts < Drafts::kNgram) {
    return [drafts, &answers] { return std::make_unique<KnownDrafts>(answers, drafts); };
  }
  TinyModel other;
  other.seed = 77;
  WriteTinyModel(scratch / "other", other);
  const auto model = DraftModel::Open(backend, DraftFilesOf(drafts == Drafts::kOwnModel ? folder : scratch / "other"),
                                      TinyModel().config, SpeculationEngineOptions(), {.always = true});
  return [model] { return model->NewSource(); };
}

void ExpectSame(const GenerateResult& expected, const GenerateResult& got, size_t index) {
  EXPECT_EQ(got.ids, expected.ids) << index;
  EXPECT_EQ(got.finish_reason, expected.finish_reason) << index;
  EXPECT_EQ(got.logits_sha256, expected.logits_sha256) << index;
  ASSERT_EQ(got.logprobs.size(), expected.logprobs.size()) << index;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    ExpectSame(expected.logprobs[i], got.logprobs[i], std::to_string(index) + " token " + std::to_string(i));
  }
  ASSERT_EQ(got.prompt_logprobs.size(), expected.prompt_logprobs.size()) << index;
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    const std::string where = std::to_string(index) + " prompt token " + std::to_string(i);
    ASSERT_EQ(got.prompt_logprobs[i].has_value(), expected.prompt_logprobs[i].has_value()) << where;
    if (expected.prompt_logprobs[i]) ExpectSame(*expected.prompt_logprobs[i], *got.prompt_logprobs[i], where);
  }
}

}  // namespace stoch::test
