// SPDX-License-Identifier: Apache-2.0
// Drafted tokens: texts that end in the middle of them, generations that go on from them, and which are checked. Whole
// answers of random requests are random_requests_test.cc's.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <ostream>
#include <random>

#include "engine/generate.h"
#include "engine/speculation/ngram_drafts.h"
#include "tests/engine/logits_cases.h"
#include "tests/engine/speculation/speculation_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/letters_tokenizer.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

struct SpeculationCase {
  BackendUnderTest backend;
  Drafts drafts;

  std::string Name() const { return backend.Name() + "_" + DraftsName(drafts); }
  friend std::ostream& operator<<(std::ostream& out, const SpeculationCase& spec) { return out << spec.Name(); }
};

class SpeculationTest : public testing::TestWithParam<SpeculationCase> {
 protected:
  std::unique_ptr<Engine> Open(const std::shared_ptr<Backend>& backend, DraftSourceMaker make) {
    model_ = TinyLogitsModel(scratch_.path());
    EngineOptions options = SpeculationEngineOptions();
    options.draft_tokens = make ? kMaxDraftTokens : 0;
    options.make_drafts = std::move(make);
    return Engine::Open(backend, OpenModelFiles(model_.folder.string()), options);
  }

  std::mt19937 random_{1};
  TempDir scratch_;
  LogitsModel model_;
  LettersTokenizer tokenizer_;
};

// Text and stop strings, which may be met in the middle of what a pass brings.
TEST_P(SpeculationTest, TextsEndAtTheSameStopString) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const auto plain = Open(backend, nullptr);
  Answers answers;
  std::vector<GenerateRequest> requests;
  std::vector<GenerateResult> expected;
  for (int i = 0; i < NumRequests() / 8; ++i) {
    GenerateRequest request = RandomRequest(random_);
    request.stop.clear();
    const GenerateResult whole = Generate(*plain, &tokenizer_, request);
    answers[request.prompt] = whole.ids;
    if (whole.text.size() > 4) request.stop = {whole.text.substr(whole.text.size() / 2, 2)};
    expected.push_back(Generate(*plain, &tokenizer_, request));
    requests.push_back(request);
  }
  const auto drafting = Open(backend, MakerOf(GetParam().drafts, answers, backend, model_.folder, scratch_.path()));
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
    GenerateRequest request = RandomRequest(random_);
    request.prompt_logprobs = request.hash_logits = false;
    request.stop.clear();
    request.max_tokens = 30;
    request.ignore_eos = true;
    request.stop_ids.clear();
    const GenerateResult expected = Generate(*plain, nullptr, request);
    answers[request.prompt] = expected.ids;
    const auto drafting = Open(backend, MakerOf(GetParam().drafts, answers, backend, model_.folder, scratch_.path()));
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
    for (const Drafts drafts : AllDrafts()) cases.push_back({backend, drafts});
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
  const std::vector<std::vector<DraftedToken>> eight(8, sure.front());
  EXPECT_GE(ChooseDraftLengths(eight, 64, times).front(), 3);
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

// Rows of a pass that checks guesses of several sequences.
TEST(SpeculationOptionsTest, HaveRoomForGuessesOfSeveralSequences) {
  const TempDir scratch;
  const DecoderConfig config = OpenModelFiles(TinyLogitsModel(scratch.path()).folder.string()).config;
  const auto picks = [&](int64_t sequences, int64_t drafts) {
    EngineOptions options = SpeculationEngineOptions();
    options.max_sequences = sequences;
    options.draft_tokens = drafts;
    return MaxPicks(ShapeOf(config, options));
  };
  EXPECT_EQ(picks(1, 7), 8);
  EXPECT_EQ(picks(4, 7), 32);
  EXPECT_EQ(picks(8, 7), 64);
  EXPECT_EQ(picks(8, 15), 64);
  EXPECT_EQ(picks(16, 7), 64);
  EXPECT_EQ(picks(100, 7), 100);
  EXPECT_EQ(picks(8, 0), 8);
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
