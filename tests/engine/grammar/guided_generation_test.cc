// SPDX-License-Identifier: Apache-2.0
// Answers under a guide: on every backend, in a batch, gone on from, next to speculation.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/speculation/ngram_drafts.h"
#include "kernels/wrappers/forwarding_backend.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/counting_guide.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

constexpr int32_t kEos = CountingGuide::kEnd;

class GuidedAnswers : public testing::Test {
 protected:
  void Open(const std::shared_ptr<Backend>& backend, const std::function<void(EngineOptions*)>& change = nullptr) {
    model_ = TinyLogitsModel(scratch_.path());
    EngineOptions options = OptionsOf({"", Precision::kSc, ""});
    options.max_sequences = 4;
    options.make_guide = [](const GrammarSpec& grammar, std::span<const int32_t>) {
      return std::make_unique<CountingGuide>(std::stoi(grammar.text), 12);
    };
    if (change) change(&options);
    engine_ = Engine::Open(backend, OpenModelFiles(model_.folder.string()), options);
    ASSERT_EQ(engine_->config().vocab_size, CountingGuide::kVocab);
  }
  GenerateRequest Request(double temperature, const char* grammar = "3") const {
    GenerateRequest request;
    request.prompt.assign(model_.prompt.begin(), model_.prompt.begin() + 8);
    request.max_tokens = 30;
    request.ignore_eos = true;
    request.stop_ids = {kEos};
    request.sampling.temperature = temperature;
    request.sampling.seed = 4;
    request.grammar = {GrammarSpec::Kind::kRegex, grammar};
    return request;
  }
  GenerateResult Run(const GenerateRequest& request) { return Generate(*engine_, nullptr, request); }
  static void ExpectGuided(const std::vector<int32_t>& ids, int32_t step = 3) {
    CountingGuide guide(step, 12);
    ASSERT_EQ(ids.size(), 13u);
    EXPECT_EQ(ids.back(), kEos);
    for (size_t i = 0; i + 1 < ids.size(); ++i) guide.Accept(ids[i]);
  }

  TempDir scratch_;
  LogitsModel model_;
  std::unique_ptr<Engine> engine_;
};

class Guided : public GuidedAnswers, public testing::WithParamInterface<BackendUnderTest> {};

TEST_P(Guided, GreedyAndSampledAnswersObey) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  for (const double temperature : {0.0, 1.0, 100.0}) {
    const GenerateResult result = Run(Request(temperature));
    ExpectGuided(result.ids);
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  }
  GenerateRequest request = Request(1);
  request.sampling.top_k = 1;
  request.sampling.repeat_penalty = 1.5;
  request.sampling.logit_bias = {{1, 100.0f}};  // which the mask forbids at first
  ExpectGuided(Run(request).ids);
  request.grammar = {};
  EXPECT_EQ(Run(request).ids.front(), 1);
}

TEST_P(Guided, LogprobsAreOfTheLogitsAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  GenerateRequest request = Request(0);
  request.top_logprobs = 1;
  const GenerateResult result = Run(request);
  ASSERT_EQ(result.logprobs.size(), result.ids.size());
  // The likeliest token is not among those that the mask allows, at some place of thirteen.
  bool forbidden = false;
  for (size_t i = 0; i < result.ids.size(); ++i) forbidden |= result.logprobs[i].top.front().first != result.ids[i];
  EXPECT_TRUE(forbidden);
}

TEST_P(Guided, ABatchHasTheBitsOfEachAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  if (!engine_->batch_invariant()) GTEST_SKIP() << "rows are coupled";
  std::vector<GenerateRequest> requests = {Request(1), Request(0, "5"), Request(1), Request(0.5, "7")};
  requests[2].grammar = {};
  requests[2].sampling.choice = 1;
  std::vector<std::unique_ptr<Generation>> running;
  for (const GenerateRequest& request : requests) running.push_back(std::make_unique<Generation>(*engine_, request));
  for (int pass = 0; pass < 40; ++pass) {
    std::vector<StepItem> items;
    std::vector<Generation*> in_pass;
    for (const auto& one : running) {
      if (one->done()) continue;
      items.push_back(one->Next(8));
      in_pass.push_back(one.get());
    }
    if (items.empty()) break;
    engine_->Step(items);
    int64_t row = 0;
    for (size_t i = 0; i < items.size(); ++i) row += in_pass[i]->Accept(items[i], row);
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(running[i]->result().ids, Run(requests[i]).ids) << i;
}

// As after a lost worker: with the emitted ids in the prompt's passes, or stepped again.
TEST_P(Guided, AnAnswerGoesOnFromWhatWasEmitted) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend);
  for (const bool stepped : {false, true}) {
    GenerateRequest request = Request(1);
    request.hash_logits = stepped;
    const GenerateResult whole = Run(request);
    for (const std::ptrdiff_t given : {1, 6, 12}) {
      request.emitted.assign(whole.ids.begin(), whole.ids.begin() + given);
      EXPECT_EQ(Run(request).ids, whole.ids) << given;
    }
    request.emitted = {whole.ids[0], whole.ids[0]};
    ExpectInvalid([&] { Run(request); }, {"does not allow"});
  }
}

TEST_P(Guided, NothingIsDrafted) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::vector<int32_t> alone;
  for (const int64_t drafts : {0, 4}) {
    Open(backend, [&](EngineOptions* options) {
      options->draft_tokens = drafts;
      options->make_drafts = [] { return std::make_unique<NgramDrafts>(); };
    });
    const GenerateResult result = Run(Request(1));
    EXPECT_EQ(result.drafts.drafted, 0);
    if (drafts == 0) alone = result.ids;
    EXPECT_EQ(result.ids, alone);
  }
}

TEST_P(Guided, AreRefusedWithoutGrammars) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Open(backend, [](EngineOptions* options) { options->make_guide = nullptr; });
  ExpectInvalid([&] { Run(Request(0)); }, {"grammar", "tokenizer"});
}

// Notes the calls of a pass, from its layers to its pick.
class NotingBackend final : public ForwardingBackend {
 public:
  NotingBackend(std::shared_ptr<Backend> inner, std::vector<std::string>* notes)
      : ForwardingBackend(std::move(inner)), notes_(notes) {}
  void Attention(const AttentionCall& call) override {
    if (notes_->empty() || notes_->back() != "layer") notes_->emplace_back("layer");
    ForwardingBackend::Attention(call);
  }
  void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) override {
    notes_->emplace_back("upload");
    ForwardingBackend::UploadLogitQueries(buffer, queries);
  }
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    notes_->emplace_back("pick");
    ForwardingBackend::PickTokens(logits, buffer, range);
  }

 private:
  std::vector<std::string>* notes_;
};

class NotingGuide final : public TokenGuide {
 public:
  NotingGuide(int32_t step, std::vector<std::string>* notes) : guide_(step, 12), notes_(notes) {}
  void Fill(std::span<uint32_t> mask) override {
    notes_->emplace_back("mask");
    guide_.Fill(mask);
  }
  void Accept(int32_t id) override { guide_.Accept(id); }

 private:
  CountingGuide guide_;
  std::vector<std::string>* notes_;
};

// On a GPU the layers run while the host makes the mask.
TEST_F(GuidedAnswers, HaveTheirMasksMadeWhileLayersRun) {
  std::vector<std::string> notes;
  const auto backend =
      std::make_shared<NotingBackend>(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr), &notes);
  Open(backend, [&](EngineOptions* options) {
    options->make_guide = [&](const GrammarSpec& grammar, std::span<const int32_t>) {
      return std::make_unique<NotingGuide>(std::stoi(grammar.text), &notes);
    };
  });
  GenerateRequest request = Request(0);
  const std::vector<std::string> guided = {"layer", "mask", "upload", "pick"};
  std::vector<std::string> expected;
  for (const std::vector<int32_t> ids = Run(request).ids; expected.size() < 4 * ids.size();) {
    expected.insert(expected.end(), guided.begin(), guided.end());
  }
  EXPECT_EQ(notes, expected);
  notes.clear();
  request.grammar = {};
  request.max_tokens = 1;
  (void)Run(request);
  EXPECT_EQ(notes, (std::vector<std::string>{"upload", "layer", "pick"}));
}

// Throws at the mask after two ids.
class FailingGuide final : public TokenGuide {
 public:
  void Fill(std::span<uint32_t> mask) override {
    if (ids_ == 2) throw InvalidInput("the grammar comes to nothing");
    std::fill(mask.begin(), mask.end(), 0u);
    mask.front() = 8;
  }
  void Accept(int32_t /*id*/) override { ++ids_; }

 private:
  int ids_ = 0;
};

TEST_F(GuidedAnswers, FailAloneInAPassOfSeveral) {
  Open(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr), [](EngineOptions* options) {
    options->make_guide = [](const GrammarSpec& grammar, std::span<const int32_t>) -> std::unique_ptr<TokenGuide> {
      if (grammar.text == "fails") return std::make_unique<FailingGuide>();
      return std::make_unique<CountingGuide>(std::stoi(grammar.text), 12);
    };
  });
  Generation fails(*engine_, Request(0, "fails"));
  Generation good(*engine_, Request(1));
  for (int pass = 0; !good.done(); ++pass) {
    std::vector<StepItem> items = {good.Next(8)};
    if (pass < 3) items.push_back(fails.Next(8));
    engine_->Step(items);
    const int64_t rows = good.Accept(items[0], 0);
    if (pass < 2) fails.Accept(items[1], rows);
    if (pass == 2) ExpectInvalid([&] { fails.Accept(items[1], rows); }, {"comes to nothing"});
  }
  EXPECT_EQ(fails.result().ids, (std::vector<int32_t>{3, 3}));
  EXPECT_EQ(good.result().ids, Run(Request(1)).ids);
}

INSTANTIATE_TEST_SUITE_P(Backends, Guided, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& backend) { return backend.param.Name(); });

}  // namespace
}  // namespace stoch::test
