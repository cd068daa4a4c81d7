// SPDX-License-Identifier: Apache-2.0
// Requests of every kind have the same answers with and without guesses: texts, ids and log-probabilities bit for bit,
// whoever guesses and whatever is right of it, next to others, gone on from in another generation as after a lost worker,
// on one device and divided over two.
//   STOCH_TEST_REQUESTS=500 random_requests_test --gtest_filter='*avx2*:*cpu_2*'
//   STOCH_TEST_REQUESTS=500 STOCH_REQUIRE_CUDA=1 random_requests_test --gtest_filter='*cuda_0_*'

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "engine/request/text_stream.h"
#include "tests/engine/logits_cases.h"
#include "tests/engine/speculation/speculation_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/counting_guide.h"
#include "tests/support/letters_tokenizer.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

enum class Split : uint8_t { kNone, kRow, kLayer };

struct Case {
  BackendUnderTest backend;
  Split split;
  Drafts drafts;
  size_t sequences;

  std::string Place() const {
    return backend.Name() + (split == Split::kRow ? "_row" : split == Split::kLayer ? "_layer" : "");
  }
  std::string Name() const { return Place() + "_" + DraftsName(drafts) + "_" + std::to_string(sequences); }
  friend std::ostream& operator<<(std::ostream& out, const Case& spec) { return out << spec.Name(); }
};

struct AskedRequest {
  GenerateRequest request;
  int64_t lost_after = -1;  // passes after which its worker is lost; -1: never
};

// Those of RandomRequest, some of them with a grammar, and some that lose their worker.
std::vector<AskedRequest> Requests(int count) {
  std::mt19937 random(1);
  std::vector<AskedRequest> requests;
  for (int i = 0; i < count; ++i) {
    AskedRequest& asked = requests.emplace_back(AskedRequest{RandomRequest(random)});
    if (random() % 8 == 0) {
      asked.request.grammar = {GrammarSpec::Kind::kRegex, std::to_string(2 + random() % 6)};
      asked.request.stop_ids = {CountingGuide::kEnd};
    }
    if (random() % 5 == 0) asked.lost_after = 1 + static_cast<int64_t>(random() % 12);
  }
  return requests;
}

// One request on its way, and its text.
class Running {
 public:
  Running(Engine& engine, const AskedRequest& asked)
      : engine_(engine),
        asked_(asked),
        stream_(&tokenizer_, asked.request.prompt, asked.request.stop),
        generation_(std::make_unique<Generation>(engine, asked.request)) {}

  Generation& generation() { return *generation_; }
  bool done() const { return generation_->done(); }

  // Returns: how many rows of the pass were its own.
  int64_t Accept(const StepItem& item, int64_t first_row) {
    const int64_t rows = generation_->Accept(item, first_row, [this](int32_t id) { return Tell(id); });
    if (++passes_ == asked_.lost_after && !done() && !generation_->result().ids.empty()) LoseWorker();
    return rows;
  }

  GenerateResult Take() {
    GenerateResult result = generation_->result();
    AddTo(result);
    result.text = text_ + stream_.Finish();
    return result;
  }

 private:
  // Returns: false where the text has come to a stop string.
  bool Tell(int32_t id) {
    const size_t index = generation_->result().ids.size() - 1;
    if (index < told_) return true;  // stepped again
    ++told_;
    text_ += stream_.Push(id);
    return !stream_.stopped();
  }

  // Another engine would go on after what was told; log-probabilities were told, too.
  void LoseWorker() {
    GenerateRequest again = asked_.request;
    again.emitted = generation_->result().ids;
    before_ = generation_->result();
    generation_.reset();
    generation_ = std::make_unique<Generation>(engine_, again);
  }

  // Adds what was told before its worker was lost.
  void AddTo(GenerateResult& result) {
    std::swap(result.logprobs, before_.logprobs);
    result.logprobs.insert(result.logprobs.end(), before_.logprobs.begin(), before_.logprobs.end());
    if (result.prompt_logprobs.empty()) result.prompt_logprobs = before_.prompt_logprobs;
    result.drafts.drafted += before_.drafts.drafted;
    result.drafts.accepted += before_.drafts.accepted;
  }

  Engine& engine_;
  const AskedRequest& asked_;
  LettersTokenizer tokenizer_;
  TextStream stream_;
  std::unique_ptr<Generation> generation_;
  GenerateResult before_;
  std::string text_;
  size_t told_ = 0;
  int64_t passes_ = 0;
};

// One pass of all that run, with every guess that there is room for.
void Step(Engine& engine, std::map<size_t, std::unique_ptr<Running>>& running, size_t most) {
  std::vector<Generation*> generations;
  for (const auto& [index, each] : running) generations.push_back(&each->generation());
  const auto drafts = DraftsForPass(generations, {});
  std::vector<StepItem> items;
  for (size_t i = 0; i < generations.size(); ++i) {
    items.push_back(generations[i]->Next(engine.shape().max_rows / static_cast<int64_t>(most), drafts[i]));
  }
  engine.Step(items);
  int64_t row = 0;
  size_t i = 0;
  for (const auto& [index, each] : running) row += each->Accept(items[i++], row);
}

// All of `requests`, so many at a time.
std::vector<GenerateResult> RunTogether(Engine& engine, const std::vector<AskedRequest>& requests, size_t most) {
  std::vector<GenerateResult> results(requests.size());
  std::map<size_t, std::unique_ptr<Running>> running;
  for (size_t next = 0; next < requests.size() || !running.empty();) {
    for (; running.size() < most && next < requests.size(); ++next) {
      running.emplace(next, std::make_unique<Running>(engine, requests[next]));
    }
    Step(engine, running, most);
    std::erase_if(running, [&](const auto& each) {
      const bool done = each.second->done();
      if (done) results[each.first] = each.second->Take();
      return done;
    });
  }
  return results;
}

class RandomRequestsTest : public testing::TestWithParam<Case> {
 protected:
  RandomRequestsTest() : model_(TinyLogitsModel(scratch_.path())) {}

  std::unique_ptr<Engine> Open(const std::shared_ptr<Backend>& backend, Split split, DraftSourceMaker make) const {
    EngineOptions options = SpeculationEngineOptions();
    options.draft_tokens = make ? kMaxDraftTokens : 0;
    options.make_drafts = std::move(make);
    options.make_guide = [](const GrammarSpec& grammar, std::span<const int32_t>) {
      return std::make_unique<CountingGuide>(std::stoi(grammar.text), 12);
    };
    ModelFiles files = OpenModelFiles(model_.folder.string());
    const std::span<const Device> devices = backend->devices();
    if (split == Split::kRow) options.placement = RowSplit(files.config, devices);
    if (split == Split::kLayer) {
      options.placement = {devices[0], {devices[0], devices[1]}, devices[1]};
      options.min_piece_rows = 4;
    }
    return Engine::Open(backend, std::move(files), options);
  }

  // Each alone, without guesses, never lost, on one device. Kept, as cases of a backend have the same.
  const std::vector<GenerateResult>& Expected(const std::shared_ptr<Backend>& backend,
                                              std::vector<AskedRequest> requests) const {
    static std::map<std::string, std::vector<GenerateResult>> known;
    const auto [found, is_new] = known.try_emplace(GetParam().backend.Name());
    if (is_new) {
      for (AskedRequest& asked : requests) asked.lost_after = -1;
      found->second = RunTogether(*Open(backend, Split::kNone, nullptr), requests, 1);
    }
    return found->second;
  }

  TempDir scratch_;
  LogitsModel model_;
};

// That the guesses were those which the case is about.
void ExpectGuesses(Drafts drafts, const DraftCounts& all, const DraftCounts& greedy, int64_t requests) {
  EXPECT_TRUE(drafts == Drafts::kNgram || all.drafted > requests / 2) << all.drafted;
  EXPECT_TRUE(drafts != Drafts::kWrong || all.accepted == 0) << all.accepted;
  EXPECT_TRUE(drafts != Drafts::kCut || (all.accepted > 0 && all.accepted < all.drafted))
      << all.accepted << " of " << all.drafted;
  // But for what follows a stop id.
  EXPECT_TRUE(drafts != Drafts::kRight || all.accepted > 9 * all.drafted / 10) << all.accepted << " of " << all.drafted;
  EXPECT_TRUE(drafts != Drafts::kOwnModel || (greedy.drafted > 0 && greedy.accepted > 9 * greedy.drafted / 10))
      << greedy.accepted << " of " << greedy.drafted;
  EXPECT_TRUE(drafts != Drafts::kOtherModel || all.accepted < all.drafted / 5) << all.accepted << " of " << all.drafted;
}

TEST_P(RandomRequestsTest, HaveTheSameAnswers) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const std::vector<AskedRequest> requests = Requests(NumRequests());
  const std::vector<GenerateResult>& expected = Expected(backend, requests);
  Answers answers;
  for (size_t i = 0; i < requests.size(); ++i) answers[requests[i].request.prompt] = expected[i].ids;
  const auto engine =
      Open(backend, GetParam().split, MakerOf(GetParam().drafts, answers, backend, model_.folder, scratch_.path()));
  const std::vector<GenerateResult> results = RunTogether(*engine, requests, GetParam().sequences);
  DraftCounts all, greedy;
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSame(expected[i], results[i], i);
    EXPECT_EQ(results[i].text, expected[i].text) << i;
    const SamplingOptions& sampling = requests[i].request.sampling;
    const bool is_greedy = sampling.temperature == 0 && !HasPenalties(sampling) && sampling.logit_bias.empty();
    for (DraftCounts* counts : {&all, &greedy}) {
      if (counts == &greedy && !is_greedy) continue;
      counts->drafted += results[i].drafts.drafted;
      counts->accepted += results[i].drafts.accepted;
    }
  }
  ExpectGuesses(GetParam().drafts, all, greedy, static_cast<int64_t>(requests.size()));
}

// Of 500, so many that each kind meets each of the others.
TEST(RandomRequests, AreOfEveryKind) {
  std::map<std::string, int> kinds;
  for (const AskedRequest& asked : Requests(500)) {
    const GenerateRequest& request = asked.request;
    const SamplingOptions& sampling = request.sampling;
    ++kinds[sampling.temperature == 0 ? "greedy" : "sampled"];
    kinds["truncated"] += sampling.top_k > 0 || sampling.top_p < 1 || sampling.min_p > 0;
    kinds["penalties"] += HasPenalties(sampling);
    kinds["logit bias"] += !sampling.logit_bias.empty();
    kinds["log-probabilities"] += request.top_logprobs >= 0;
    kinds["of the prompt"] += request.prompt_logprobs;
    kinds["stop strings"] += !request.stop.empty();
    kinds["stop ids"] += !request.stop_ids.empty();
    kinds["grammar"] += !request.grammar.empty();
    kinds["lost"] += asked.lost_after > 0;
    kinds["lost with a grammar"] += asked.lost_after > 0 && !request.grammar.empty();
    kinds["hashed"] += request.hash_logits;
  }
  EXPECT_EQ(kinds.size(), 13u);
  for (const auto& [kind, count] : kinds) EXPECT_GE(count, 8) << kind;
}

std::vector<Case> Cases() {
  std::vector<std::pair<BackendUnderTest, Split>> places;
  for (const BackendUnderTest& backend : BackendsUnderTest()) {
    // Threads divide rows as without guesses; many small passes take long.
    if (backend.threads <= 1) places.emplace_back(backend, Split::kNone);
  }
  for (const Split split : {Split::kRow, Split::kLayer}) {
    places.push_back({{"cpu:2", "", 1}, split});
    places.push_back({{"cuda:0,1", "", 0}, split});
  }
  std::vector<Case> cases;
  for (const auto& [backend, split] : places) {
    for (const Drafts drafts : AllDrafts()) {
      for (const size_t sequences : {1, 3, 8}) cases.push_back({backend, split, drafts, sequences});
    }
  }
  return cases;
}

std::string NameOf(const testing::TestParamInfo<Case>& info) { return info.param.Name(); }

INSTANTIATE_TEST_SUITE_P(Backends, RandomRequestsTest, testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace stoch::test
