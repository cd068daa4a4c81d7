// SPDX-License-Identifier: Apache-2.0
// Sequences whose tokens are told, and the texts of `stoch bench --speculate` that tell them.

#include "tools/stoch/told_sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/speculation/ngram_drafts.h"
#include "kernels/registry.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tools/stoch/speculation_texts.h"

namespace stoch::test {
namespace {

using Ids = std::vector<int32_t>;

class ToldSequenceTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> Open(const std::string& folder, int64_t sequences) {
    EngineOptions options;
    options.precision = Precision::kFp32;
    options.max_sequences = sequences;
    options.draft_tokens = 7;
    options.make_drafts = [] { return std::make_unique<NgramDrafts>(); };
    return Engine::Open(backend_, OpenModelFiles(folder), options);
  }

  TempDir scratch_;
  std::shared_ptr<Backend> backend_ = OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr);
};

// Guesses count up to the first that is not what comes, and the text is what was told.
TEST_F(ToldSequenceTest, TakesGuessesThatWereTold) {
  WriteTinyModel(scratch_.path(), {});
  const auto engine = Open(scratch_.path().string(), 1);
  const Ids answer = {10, 11, 12, 13, 14, 15};
  cli::ToldSequence sequence(*engine, Ids{1, 2, 3}, answer, {});
  const auto pass = [&](const std::vector<DraftedToken>& guesses) {
    const StepItem item = sequence.Next(engine->shape().max_rows, guesses);
    engine->Step({&item, 1});
    EXPECT_EQ(sequence.Accept(item, 0), guesses.empty() ? 1 : item.num_tokens);
    return item.num_tokens;
  };
  EXPECT_TRUE(sequence.prefilling());
  EXPECT_EQ(pass({}), 3);
  EXPECT_FALSE(sequence.prefilling());
  EXPECT_EQ(sequence.ids().size(), 1u);
  EXPECT_EQ(sequence.Turn().most, 4);  // one more comes after the last guess
  EXPECT_EQ(pass({{11, 1}, {12, 1}, {50, 1}, {14, 1}}), 5);
  EXPECT_EQ(sequence.ids().size(), 4u);  // 10, two that were guessed, and the one that was not
  EXPECT_EQ(pass({{50, 1}}), 2);
  EXPECT_EQ(sequence.ids().size(), 5u);
  EXPECT_EQ(pass({}), 1);
  EXPECT_TRUE(sequence.done());
  EXPECT_TRUE(std::equal(answer.begin(), answer.end(), sequence.ids().begin(), sequence.ids().end()));
  EXPECT_EQ(sequence.drafts().passes, 2);
  EXPECT_EQ(sequence.drafts().drafted, 5);
  EXPECT_EQ(sequence.drafts().accepted, 2);
}

TEST_F(ToldSequenceTest, EditsAreAskedForAndStoriesAreNot) {
  const std::string folder = STOCH_SOURCE_DIR "/demo";
  const auto tokenizer = LoadTokenizer(folder);
  const auto texts = cli::ToldTexts(*Open(folder, 1), *tokenizer, 32000, 2, 40);
  ASSERT_EQ(texts.size(), 2u);
  for (const cli::BenchText& text : texts) {
    for (const Ids& answer : text.answers) EXPECT_EQ(answer.size(), 40u);
  }
  const std::string asked = tokenizer->Decode(texts[0].answers[0]);
  EXPECT_NE(asked.find("liked to play in the big park near the house. One day, Tom saw"), std::string::npos) << asked;
  EXPECT_NE(texts[1].answers[0], texts[1].answers[1]);
  const auto few = cli::ToldTexts(*Open(folder, 1), *tokenizer, 50, 1, 40);  // of a vocabulary of 50 tokens
  const Ids& story = few[1].answers[0];
  EXPECT_LT(*std::max_element(story.begin(), story.end()), 50);
}

// A draft model that guesses greedily is right so often as the name of the text says.
TEST_F(ToldSequenceTest, DraftModelsGuessTheShareThatTheNameSays) {
  WriteTinyModel(scratch_.path(), {});
  const auto draft = Open(scratch_.path().string(), 2);
  constexpr int64_t kTokens = 60;
  for (const cli::BenchText& text : cli::GuessedTexts(*draft, 2, kTokens)) {
    int64_t right = 0;
    for (size_t i = 0; i < 2; ++i) {
      Ids ids = text.prompts[i];
      ids.insert(ids.end(), text.answers[i].begin(), text.answers[i].end());
      const auto sequence = draft->NewSequence(static_cast<int64_t>(ids.size()), ids, {});
      const StepItem item{sequence.get(), sequence->pending(), StepOutput::kAll};
      draft->Step({&item, 1});
      Ids guesses(ids.size());
      draft->Argmax(0, guesses);
      for (size_t at = text.prompts[i].size(); at < ids.size(); ++at) right += guesses[at - 1] == ids[at];
    }
    const double share = std::stod(text.name.substr(text.name.find(' ')));
    EXPECT_NEAR(static_cast<double>(right) / (2 * kTokens), share, 0.1) << text.name;
  }
}

}  // namespace
}  // namespace stoch::test
