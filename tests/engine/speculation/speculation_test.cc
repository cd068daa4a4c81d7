// SPDX-License-Identifier: Apache-2.0
// Drafted tokens: texts, ids and log-probabilities are those of a generation without them, whatever is drafted.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <random>

#include "engine/draft_model/draft_model.h"
#include "engine/generate.h"
#include "engine/speculation/ngram_drafts.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/letters_tokenizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// STOCH_TEST_REQUESTS=500 asks more: two minutes for each instruction set.
const int kRequests =
    std::getenv("STOCH_TEST_REQUESTS") != nullptr ? std::atoi(std::getenv("STOCH_TEST_REQUESTS")) : 24;
constexpr int64_t kVocab = 96;

// Which drafts a source gives of an answer that it knows, or who guesses: the model itself, or another of its kind.
enum class Drafts { kRight, kWrong, kCut, kNgram, kOwnModel, kOtherModel };

// Prompt -> the ids that follow it.
using Answers = std::map<std::vector<int32_t>, std::vector<int32_t>>;

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
        drafts.push_back({right ? answer[i] : static_cast<int32_t>((answer[i] + 1) % kVocab), 1.0});
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

struct SpeculationCase {
  BackendUnderTest backend;
  Drafts drafts;
  size_t sequences;

  std::string Name() const {
    constexpr std::array<const char*, 6> kNames = {"right", "wrong", "cut", "ngram", "own_model", "other_model"};
    return backend.Name() + "_" + kNames[static_cast<size_t>(drafts)] + "_" + std::to_string(sequences);
  }
  friend std::ostream& operator<<(std::ostream& out, const SpeculationCase& spec) { return out << spec.Name(); }
};

class SpeculationTest : public testing::TestWithParam<SpeculationCase> {
 protected:
  GenerateRequest RandomRequest() {
    const auto chance = [&](double share) { return std::uniform_real_distribution<>(0, 1)(random_) < share; };
    const auto up_to = [&](int most) { return std::uniform_int_distribution<>(0, most)(random_); };
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

  std::unique_ptr<Engine> Open(const std::shared_ptr<Backend>& backend, DraftSourceMaker make) {
    model_ = TinyLogitsModel(scratch_.path());
    EngineOptions options = Options();
    options.draft_tokens = make ? kMaxDraftTokens : 0;
    options.make_drafts = std::move(make);
    return Engine::Open(backend, OpenModelFiles(model_.folder.string()), options);
  }

  static EngineOptions Options() {
    EngineOptions options = OptionsOf({"", Precision::kSc, ""});
    options.max_sequences = 8;
    options.kv_tokens = 0;
    return options;
  }

  // Requires for models: Open has been called.
  DraftSourceMaker MakerOf(Drafts drafts, const Answers& answers, const std::shared_ptr<Backend>& backend) {
    if (drafts == Drafts::kNgram) return [] { return std::make_unique<NgramDrafts>(); };
    if (drafts < Drafts::kNgram) {
      return [drafts, &answers] { return std::make_unique<KnownDrafts>(answers, drafts); };
    }
    TinyModel other;
    other.seed = 77;
    WriteTinyModel(scratch_ / "other", other);
    const DraftModelOptions always{.always = true};
    const std::filesystem::path folder = drafts == Drafts::kOwnModel ? model_.folder : scratch_.path() / "other";
    const auto model = DraftModel::Open(backend, DraftFilesOf(folder), TinyModel().config, Options(), always);
    return [model] { return model->NewSource(); };
  }

  std::mt19937 random_{1};
  TempDir scratch_;
  LogitsModel model_;
  LettersTokenizer tokenizer_;
};

void ExpectSame(const GenerateResult& expected, const GenerateResult& got, size_t index) {
  EXPECT_EQ(got.ids, expected.ids) << index;
  EXPECT_EQ(got.finish_reason, expected.finish_reason) << index;
  EXPECT_EQ(got.logits_sha256, expected.logits_sha256) << index;
  ASSERT_EQ(got.logprobs.size(), expected.logprobs.size()) << index;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].logprob, expected.logprobs[i].logprob) << index << " token " << i;
    EXPECT_EQ(got.logprobs[i].top, expected.logprobs[i].top) << index << " token " << i;
  }
  EXPECT_EQ(got.prompt_logprobs.size(), expected.prompt_logprobs.size()) << index;
}

// All of `requests`, so many at a time, stepped together. Stop strings are for who makes text.
std::vector<GenerateResult> RunTogether(Engine& engine, const std::vector<GenerateRequest>& requests, size_t most) {
  std::vector<GenerateResult> results(requests.size());
  std::map<size_t, std::unique_ptr<Generation>> running;
  for (size_t next = 0; next < requests.size() || !running.empty();) {
    while (running.size() < most && next < requests.size()) {
      running.emplace(next, std::make_unique<Generation>(engine, requests[next]));
      ++next;
    }
    std::vector<Generation*> generations;
    for (const auto& [index, generation] : running) generations.push_back(generation.get());
    const auto drafts = DraftsForPass(generations, {});
    std::vector<StepItem> items;
    for (size_t i = 0; i < generations.size(); ++i) {
      items.push_back(generations[i]->Next(engine.shape().max_rows / static_cast<int64_t>(most), drafts[i]));
    }
    engine.Step(items);
    int64_t row = 0;
    for (size_t i = 0; i < generations.size(); ++i) row += generations[i]->Accept(items[i], row);
    std::erase_if(running, [&](const auto& each) {
      if (each.second->done()) results[each.first] = each.second->result();
      return each.second->done();
    });
  }
  return results;
}

TEST_P(SpeculationTest, RandomRequestsHaveTheSameAnswers) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < kRequests; ++i) requests.push_back(RandomRequest());
  const auto plain = Open(backend, nullptr);
  std::vector<GenerateResult> expected;
  Answers answers;
  for (const GenerateRequest& request : requests) {
    expected.push_back(RunTogether(*plain, {request}, 1).front());
    answers[request.prompt] = expected.back().ids;
  }
  const auto drafting = Open(backend, MakerOf(GetParam().drafts, answers, backend));
  const std::vector<GenerateResult> results = RunTogether(*drafting, requests, GetParam().sequences);
  DraftCounts all, greedy;
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSame(expected[i], results[i], i);
    const SamplingOptions& sampling = requests[i].sampling;
    const bool is_greedy = sampling.temperature == 0 && !HasPenalties(sampling) && sampling.logit_bias.empty();
    for (DraftCounts* counts : {&all, &greedy}) {
      if (counts == &greedy && !is_greedy) continue;
      counts->drafted += results[i].drafts.drafted;
      counts->accepted += results[i].drafts.accepted;
    }
  }
  const Drafts drafts = GetParam().drafts;
  EXPECT_TRUE(drafts == Drafts::kNgram || all.drafted > kRequests / 2) << all.drafted;
  EXPECT_TRUE(drafts != Drafts::kWrong || all.accepted == 0) << all.accepted;
  EXPECT_TRUE(drafts != Drafts::kCut || all.accepted < all.drafted) << all.accepted << " of " << all.drafted;
  // But for what follows a stop id.
  EXPECT_TRUE(drafts != Drafts::kRight || all.accepted > 9 * all.drafted / 10) << all.accepted << " of " << all.drafted;
  EXPECT_TRUE(drafts != Drafts::kOwnModel || (greedy.drafted > 0 && greedy.accepted > 9 * greedy.drafted / 10))
      << greedy.accepted << " of " << greedy.drafted;
  EXPECT_TRUE(drafts != Drafts::kOtherModel || all.accepted < all.drafted / 5) << all.accepted << " of " << all.drafted;
}

// Text and stop strings, which may be met in the middle of what a pass brings.
TEST_P(SpeculationTest, TextsEndAtTheSameStopString) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const auto plain = Open(backend, nullptr);
  Answers answers;
  std::vector<GenerateRequest> requests;
  std::vector<GenerateResult> expected;
  for (int i = 0; i < kRequests / 8; ++i) {
    GenerateRequest request = RandomRequest();
    request.stop.clear();
    const GenerateResult whole = Generate(*plain, &tokenizer_, request);
    answers[request.prompt] = whole.ids;
    if (whole.text.size() > 4) request.stop = {whole.text.substr(whole.text.size() / 2, 2)};
    expected.push_back(Generate(*plain, &tokenizer_, request));
    requests.push_back(request);
  }
  const auto drafting = Open(backend, MakerOf(GetParam().drafts, answers, backend));
  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateResult result = Generate(*drafting, &tokenizer_, requests[i]);
    ExpectSame(expected[i], result, i);
    EXPECT_EQ(result.text, expected[i].text) << i;
  }
}

// A generation that gives its pages back, and one that goes on from what it brought.
TEST_P(SpeculationTest, GoOnFromWhereDraftsLeftThem) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const auto plain = Open(backend, nullptr);
  Answers answers;
  for (int round = 0; round < 10; ++round) {
    GenerateRequest request = RandomRequest();
    request.prompt_logprobs = request.hash_logits = false;
    request.max_tokens = 30;
    request.ignore_eos = true;
    request.stop_ids.clear();
    const GenerateResult expected = RunTogether(*plain, {request}, 1).front();
    answers[request.prompt] = expected.ids;
    const auto drafting = Open(backend, MakerOf(GetParam().drafts, answers, backend));
    PrefixCache prefixes(*drafting);
    std::vector<int32_t> ids;
    for (int passes = 0; ids.size() < expected.ids.size(); ++passes) {
      Generation generation(*drafting, request, &prefixes, false);
      bool more = true;
      for (int pass = 0; pass < 1 + passes % 3 && more; ++pass) {
        Generation* const alone = &generation;
        const StepItem item = generation.Next(drafting->shape().max_rows, DraftsForPass({&alone, 1}, {}).front());
        if (item.num_tokens + item.sequence->computed() > item.sequence->room()) {
          ASSERT_TRUE(item.sequence->Grow(item.sequence->computed() + item.num_tokens));
        }
        drafting->Step({&item, 1});
        generation.Accept(item, 0);
        more = !generation.done();
      }
      ids = generation.result().ids;
      if (!more) break;
      if (passes % 2 == 1) {  // as if it was to be stepped, and is not; then it goes on without drafts, or elsewhere
        Generation* const alone = &generation;
        (void)generation.Next(drafting->shape().max_rows, DraftsForPass({&alone, 1}, {}).front());
      }
      if (passes % 4 == 1) {
        const StepItem item = generation.Next(drafting->shape().max_rows);
        EXPECT_EQ(item.num_tokens, 1);
        ASSERT_TRUE(item.sequence->Grow(item.sequence->computed() + 1));
        drafting->Step({&item, 1});
        generation.Accept(item, 0);
        ids = generation.result().ids;
        if (generation.done()) break;
      }
      request = generation.Rest();
    }
    EXPECT_EQ(ids, expected.ids) << round;
  }
}

std::vector<SpeculationCase> Cases() {
  std::vector<SpeculationCase> cases;
  for (const BackendUnderTest& backend : BackendsUnderTest()) {
    if (backend.threads > 1) continue;  // threads divide rows as without guesses; many small passes take long
    for (const Drafts drafts :
         {Drafts::kRight, Drafts::kWrong, Drafts::kCut, Drafts::kNgram, Drafts::kOwnModel, Drafts::kOtherModel}) {
      for (const size_t sequences : {1, 3, 8}) cases.push_back({backend, drafts, sequences});
    }
  }
  return cases;
}

std::string NameOf(const testing::TestParamInfo<SpeculationCase>& info) { return info.param.Name(); }

INSTANTIATE_TEST_SUITE_P(Backends, SpeculationTest, testing::ValuesIn(Cases()), NameOf);

TEST(NgramDraftsTest, CopyWhatFollowedTheLastThreeTokens) {
  NgramDrafts source;
  std::vector<int32_t> ids;
  const auto append = [&](const std::vector<int32_t>& more) {
    std::copy(more.begin(), more.end(), std::back_inserter(ids));
  };
  append({1, 2, 3, 4, 5, 6, 7, 8, 9, 20});
  EXPECT_TRUE(source.Propose(ids, 5).empty());
  append({2, 3, 4});
  std::vector<DraftedToken> drafts = source.Propose(ids, 4);
  ASSERT_EQ(drafts.size(), 4u);
  EXPECT_EQ(drafts[0].id, 5);
  EXPECT_EQ(drafts[3].id, 8);
  EXPECT_EQ(drafts[0].likely, 0);  // nothing is known yet
  append({5, 6, 7});
  drafts = source.Propose(ids, 9);
  ASSERT_EQ(drafts.size(), 9u);  // to the end of what is there
  EXPECT_EQ(drafts[0].id, 8);
  ids.push_back(30);  // another token: the match ends
  EXPECT_TRUE(source.Propose(ids, 4).empty());
  // The latest place counts.
  append({1, 2, 3, 77, 1, 2, 3});
  EXPECT_EQ(source.Propose(ids, 1).front().id, 77);
}

TEST(NgramDraftsTest, LearnFromEveryToken) {
  NgramDrafts source;
  std::vector<int32_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(i);
  for (int i = 0; i < 60; ++i) {
    ids.push_back(i);
    (void)source.Propose(ids, 7);
  }
  std::vector<DraftedToken> drafts = source.Propose(ids, 7);
  ASSERT_EQ(drafts.size(), 7u);
  EXPECT_GT(drafts[0].likely, 0.9);
  EXPECT_EQ(drafts[6].id, 66);
}

TEST(DraftLengthsTest, AreThoseThatPay) {
  const std::vector<std::vector<DraftedToken>> sure = {std::vector<DraftedToken>(15, {1, 0.95})};
  const std::vector<std::vector<DraftedToken>> unsure = {std::vector<DraftedToken>(15, {1, 0.25})};
  const std::vector<std::vector<DraftedToken>> none = {std::vector<DraftedToken>(15, {1, 0})};
  PassTimes times;
  EXPECT_EQ(ChooseDraftLengths(none, 16, times).front(), 0);
  EXPECT_GE(ChooseDraftLengths(sure, 16, times).front(), 7);
  EXPECT_LE(ChooseDraftLengths(sure, 4, times).front(), 3);
  // A device on which every row costs as much as the first.
  for (int64_t rows = 1; rows <= 16; ++rows) times.Add(rows, static_cast<double>(rows));
  EXPECT_EQ(ChooseDraftLengths(sure, 16, times).front(), 0);
  EXPECT_EQ(ChooseDraftLengths(unsure, 16, times).front(), 0);
  // One where rows are free; an outlier counts for nothing.
  for (int i = 0; i < 5; ++i) {
    for (int64_t rows = 1; rows <= 18; ++rows) times.Add(rows, i == 2 && rows > 1 ? 100.0 : 1.0);
  }
  EXPECT_EQ(ChooseDraftLengths(sure, 16, times).front(), 15);
  EXPECT_EQ(ChooseDraftLengths(unsure, 16, times).front(), 1);
  const std::vector<std::vector<DraftedToken>> mixed = {sure.front(), none.front(), {}};
  EXPECT_EQ(ChooseDraftLengths(mixed, 18, times), (std::vector<int64_t>{15, 0, 0}));
}

TEST(SpeculationOptionsTest, NeedRowsThatDoNotDependOnTheirPass) {
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const ModelFiles files = OpenModelFiles(model.folder.string());
  EngineOptions options = OptionsOf({"", Precision::kSc, "attention=per_head"});
  options.make_drafts = [] { return std::make_unique<NgramDrafts>(); };
  options.draft_tokens = 3;
  ExpectInvalid([&] { (void)FillDefaults(files.config, options); }, {"draft_tokens = 3"});
  options = OptionsOf({"", Precision::kFp16, ""});
  options.draft_tokens = 3;
  options.make_drafts = [] { return std::make_unique<NgramDrafts>(); };
  ExpectInvalid([&] { (void)FillDefaults(files.config, options); }, {"draft_tokens = 3", "fp16"});
  options = OptionsOf({"", Precision::kSc, ""});
  options.draft_tokens = kMaxDraftTokens + 1;
  ExpectInvalid([&] { (void)FillDefaults(files.config, options); }, {"draft_tokens = 16", "0..15"});
}

}  // namespace
}  // namespace stoch::test
