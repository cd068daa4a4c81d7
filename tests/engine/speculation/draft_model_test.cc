// SPDX-License-Identifier: Apache-2.0
// When a draft model guesses, what it takes, and whose tokens it may guess. The bits are speculation_test.cc's.

#include "engine/draft_model/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <set>
#include <vector>

#include "engine/generate.h"
#include "engine/placement.h"
#include "engine/speculation/guess_plan.h"
#include "kernels/registry.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/letters_tokenizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// Passes of the target in which a row more takes a tenth of the first.
PassTimes CheapRows(double ms = 1) {
  PassTimes times;
  for (int64_t rows = 1; rows <= 32; ++rows) times.Add(rows, ms * (0.9 + 0.1 * static_cast<double>(rows)));
  return times;
}

std::function<double(int64_t)> DraftPasses(double ms) {
  return [ms](int64_t rows) { return ms * (0.9 + 0.1 * static_cast<double>(rows)); };
}

TEST(GuessPlan, CountsTheTimeOfGuessing) {
  const std::vector<GuessCandidate> sure = {{0.9, 1, 15}};
  const GuessPlan cheap = PlanGuesses(sure, 1, 16, CheapRows(), DraftPasses(0.05));
  EXPECT_EQ(cheap.guesses, std::vector<int64_t>{7});
  // 1 + 0.9 + ... + 0.9^7 tokens, in a pass of 8 rows and seven of the draft model.
  EXPECT_NEAR(cheap.gain, (1 - std::pow(0.9, 8)) / (1 - 0.9) / (1.7 + 7 * 0.05), 1e-9);
  EXPECT_EQ(PlanGuesses(sure, 1, 16, CheapRows(), DraftPasses(0.3)).guesses, std::vector<int64_t>{3});
  EXPECT_EQ(PlanGuesses(sure, 1, 16, CheapRows(), DraftPasses(0.8)).guesses, std::vector<int64_t>{0});
  EXPECT_EQ(PlanGuesses(sure, 1, 16, CheapRows(), DraftPasses(0.8)).gain, 1);
  // What the draft model has yet to see takes time, too.
  const std::vector<GuessCandidate> behind = {{0.9, 15, 15}};
  EXPECT_LT(PlanGuesses(behind, 1, 16, CheapRows(), DraftPasses(0.3)).gain,
            PlanGuesses(sure, 1, 16, CheapRows(), DraftPasses(0.3)).gain);
}

TEST(GuessPlan, ChoosesSequencesAndKeepsToTheRows) {
  const std::vector<GuessCandidate> mixed = {{0.1, 1, 15}, {0.95, 1, 15}, {0.9, 1, 2}, {0.95, 1, 0}};
  const GuessPlan plan = PlanGuesses(mixed, 4, 16, CheapRows(), DraftPasses(0.05));
  EXPECT_EQ(plan.guesses[0], 0);
  EXPECT_GE(plan.guesses[1], 3);
  EXPECT_LE(plan.guesses[2], 2);
  EXPECT_EQ(plan.guesses[3], 0);
  for (const int64_t max_rows : {5, 8, 16}) {
    int64_t rows = 4;
    for (const int64_t guesses : PlanGuesses(mixed, 4, max_rows, CheapRows(), DraftPasses(0.01)).guesses) {
      rows += guesses;
    }
    EXPECT_LE(rows, max_rows);
  }
}

TEST(AcceptanceTest, LearnsByProbability) {
  Acceptance acceptance;
  EXPECT_NEAR(acceptance.Likely(0.9), 0.9, 1e-9);
  for (int i = 0; i < 40; ++i) {
    acceptance.Learn(0.95, true);
    acceptance.Learn(0.3, false);
  }
  EXPECT_GT(acceptance.Likely(0.95), 0.98);
  EXPECT_LT(acceptance.Likely(0.3), 0.02);
  EXPECT_NEAR(acceptance.Likely(0.6), 0.6, 1e-9);  // nothing was seen of it
  EXPECT_NEAR(acceptance.mean(), 0.5, 0.1);
  EXPECT_EQ(acceptance.learnt(), 80);
}

TEST(LookBudgetTest, IsAShareOfTheTimeAndSavesNothingUp) {
  LookBudget budget(0.01);
  EXPECT_FALSE(budget.Allows(1));
  for (int i = 0; i < 100; ++i) budget.Run(1);
  EXPECT_TRUE(budget.Allows(0.99));
  EXPECT_FALSE(budget.Allows(1.01));
  budget.Spend(0.5);
  EXPECT_FALSE(budget.Allows(0.1));
  budget.Spend(3);  // more than was thought: to be made up for
  for (int i = 0; i < 300; ++i) budget.Run(1);
  EXPECT_FALSE(budget.Allows(0.1));
  for (int i = 0; i < 20; ++i) budget.Run(1);
  EXPECT_TRUE(budget.Allows(0.1));
}

TEST(PassTimesTest, EstimatesFromTheNearest) {
  PassTimes times;
  EXPECT_FALSE(times.Ms(1).has_value());
  times.Add(2, 10);
  EXPECT_NEAR(times.Ms(2).value(), 10, 1e-9);
  EXPECT_NEAR(times.Ms(1).value(), 10 / 1.12, 1e-9);
  EXPECT_NEAR(times.Ms(12).value(), 10 * 2.32 / 1.12, 1e-9);
  times.Add(11, 18);
  EXPECT_NEAR(times.Ms(12).value(), 18 * 2.32 / 2.2, 1e-9);
  EXPECT_NEAR(times.Ratio(6, 2), 1.6 / 1.12, 1e-9);
  EXPECT_NEAR(times.Ratio(64, 8), 8.56 / 1.84, 1e-9);
  times.AddPrompt(8, 800);  // too few to tell what a row costs
  EXPECT_NEAR(times.Ratio(6, 2), 1.6 / 1.12, 1e-9);
  times.AddPrompt(200, 1000);
  EXPECT_NEAR(times.Ms(100).value(), 18 + 500, 1e-9);
  EXPECT_NEAR(times.Ratio(6, 2), 1 + 4 * 0.5, 1e-9);
  EXPECT_NEAR(times.Ratio(11, 2), 1.8, 1e-9);  // timed
}

class DraftModelTest : public testing::Test {
 protected:
  DraftModelTest() { WriteTinyModel(scratch_.path(), {}); }

  DraftFiles Draft() const { return {OpenModelFiles(scratch_.path().string()), Precision::kFp32, {}}; }

  static EngineOptions Options() {
    EngineOptions options;
    options.precision = Precision::kFp32;
    options.context = 128;
    options.max_sequences = 2;
    options.draft_tokens = 7;
    return options;
  }

  // How the model guesses for itself where its passes take as long as `times` say.
  DraftCounts CountsWith(const PassTimes& times, const DraftModelOptions& draft_options = {}) {
    EngineOptions options = Options();
    DecoderConfig large = TinyLlamaConfig();  // of the target, as far as the draft model knows
    large.num_hidden_layers = 400;
    const auto draft = DraftModel::Open(backend_, Draft(), large, options, draft_options);
    options.make_drafts = [draft] { return draft->NewSource(); };
    const auto engine = Engine::Open(backend_, OpenModelFiles(scratch_.path().string()), options);
    GenerateRequest request;
    request.prompt = {1, 5, 9, 20};
    request.max_tokens = 100;
    request.ignore_eos = true;
    Generation generation(*engine, request);
    while (!generation.done()) {
      Generation* const alone = &generation;
      const StepItem item = generation.Next(engine->shape().max_rows, DraftsForPass({&alone, 1}, times).front());
      engine->Step({&item, 1});
      generation.Accept(item, 0);
    }
    return generation.result().drafts;
  }

  TempDir scratch_;
  std::shared_ptr<Backend> backend_ = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
};

TEST_F(DraftModelTest, GuessesWhereThatPaysAndOnlyThere) {
  // Passes of a second: a look is paid for after one of them, and guesses that are all right pay.
  const DraftCounts slow = CountsWith(CheapRows(1000));
  EXPECT_GT(slow.accepted, 50);
  EXPECT_EQ(slow.accepted, slow.drafted);
  // Passes that take next to nothing: one look tells, whose guess may be checked.
  EXPECT_LE(CountsWith(CheapRows(1e-6)).drafted, 1);
  // Nothing is known of passes.
  EXPECT_EQ(CountsWith(PassTimes()).drafted, 0);
}

TEST_F(DraftModelTest, NeedsALookBeforeItGuesses) {
  EXPECT_EQ(CountsWith(CheapRows(1000), {.look_share = 0}).drafted, 0);
}

// What the other model says instead of a guess is what later guesses follow; guesses that it did not take are forgotten.
TEST_F(DraftModelTest, GuessesAreThoseOfTheTextAlone) {
  const auto draft = DraftModel::Open(backend_, Draft(), TinyLlamaConfig(), Options(), {.always = true});
  const auto guesses_of = [](DraftSource& source, const std::vector<int32_t>& ids) {
    const DraftTurn turn{&source, ids, 5, 1, 60};
    dynamic_cast<GroupDraftSource&>(source).Prepare({&turn, 1}, 16, PassTimes());
    std::vector<int32_t> guesses;
    for (const DraftedToken& guess : source.Propose(ids, 5)) guesses.push_back(guess.id);
    return guesses;
  };
  const auto source = draft->NewSource();
  std::vector<int32_t> ids = {1, 5, 9, 20};
  std::set<std::vector<int32_t>> different;
  for (int32_t round = 0; round < 12; ++round) {
    const std::vector<int32_t> guesses = guesses_of(*source, ids);
    ASSERT_EQ(guesses.size(), 5u) << round;
    EXPECT_EQ(guesses, guesses_of(*draft->NewSource(), ids)) << round;
    different.insert(guesses);
    const auto taken = guesses.begin() + round % 4;  // none to three of them, then another token
    std::copy(guesses.begin(), taken, std::back_inserter(ids));
    ids.push_back((*taken + 1 + round) % 96);
  }
  EXPECT_GT(different.size(), 6u);
}

TEST_F(DraftModelTest, TakesWhatIsPlanned) {
  const EngineOptions options = Options();
  const MemoryBytes plan = PlanDraft(Draft(), options, *backend_);
  const auto draft = DraftModel::Open(backend_, Draft(), TinyLlamaConfig(), options);
  EXPECT_EQ(draft->engine().model().kv_cache_bytes(), plan.kv_cache);
  EXPECT_EQ(draft->engine().model().workspace_bytes(), plan.workspace);
  EXPECT_EQ(draft->engine().shape().kv_tokens, 256);
  EXPECT_GT(plan.weights + plan.embedding, 4 * TotalParameters(TinyLlamaConfig()) * 9 / 10);
  // A context of its own.
  EngineOptions longer = options;
  longer.context = 4096;
  EXPECT_EQ(DraftEngineOptions(Draft(), longer).context, 128);
}

TEST_F(DraftModelTest, HasRoomNextToItsTarget) {
  const ModelFiles files = OpenModelFiles(scratch_.path().string());
  const DraftFiles draft = Draft();
  EngineOptions engine = Options();
  engine.max_pass_rows = 128;
  const int64_t own =
      PlanMemory(files, engine.precision, engine.sc, ShapeOf(files.config, engine), *backend_).total.total();
  const int64_t others = PlanDraft(draft, engine, *backend_).total();
  const BytesOfOthers plan = [&](const EngineOptions& target) { return PlanDraft(draft, target, *backend_); };
  PlacementOptions placement;
  placement.max_memory = {{0, own + others}};
  EXPECT_NO_THROW(PlaceNextTo(placement, files, *backend_, &engine, plan));
  placement.max_memory = {{0, own + others - 1}};
  ExpectInvalid([&] { PlaceNextTo(placement, files, *backend_, &engine, plan); }, {"1 B more", "for its draft model"});
  // A cache that is sized by what is free leaves room for the cache of the draft model, too.
  const auto fitted = [&](bool with) {
    EngineOptions sized = Options();
    sized.kv_tokens = int64_t{1} << 30;
    PlacementOptions fit;
    fit.fit_kv = KvFit();
    PlaceNextTo(fit, files, *backend_, &sized, with ? plan : BytesOfOthers());
    return sized.kv_tokens;
  };
  const double share = static_cast<double>(fitted(true)) / static_cast<double>(fitted(false));
  EXPECT_NEAR(share, 0.5, 0.1);
}

// Letters, but for one.
class OtherLetters final : public LettersTokenizer {
 public:
  std::string TokenBytes(int32_t id) const override { return id == 40 ? "#" : LettersTokenizer::TokenBytes(id); }
};

class FewerLetters final : public LettersTokenizer {
 public:
  int32_t vocab_size() const override { return 95; }
};

TEST_F(DraftModelTest, SpeaksOfTheSameTokens) {
  ModelFiles target = OpenModelFiles(scratch_.path().string());
  ModelFiles draft = OpenModelFiles(scratch_.path().string());
  target.name = "large";
  draft.name = "small";
  const LettersTokenizer letters;
  const OtherLetters other;
  const FewerLetters fewer;
  EXPECT_NO_THROW(CheckSameTokens(target, &letters, draft, &letters));
  EXPECT_NO_THROW(CheckSameTokens(target, nullptr, draft, nullptr));
  ExpectInvalid([&] { CheckSameTokens(target, &letters, draft, &other); },
                {"draft model small", "token 40 is '#'", "in large it is 'H'"});
  ExpectInvalid([&] { CheckSameTokens(target, &letters, draft, &fewer); }, {"has 95 tokens, large has 96"});
  ExpectInvalid([&] { CheckSameTokens(target, &letters, draft, nullptr); }, {"has no tokenizer"});
  ExpectInvalid([&] { CheckSameTokens(target, nullptr, draft, &letters); }, {"has a tokenizer, large has none"});
  draft.config.vocab_size = 100;
  ExpectInvalid([&] { CheckSameTokens(target, nullptr, draft, nullptr); }, {"has 100 tokens, large has 96"});
}

}  // namespace
}  // namespace stoch::test
