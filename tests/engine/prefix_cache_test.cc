// SPDX-License-Identifier: Apache-2.0
// Reuse of prompts' pages: what comes out is what computing everything gives, and pages come and go as they should.

#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/generate.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int64_t kContext = 512;
constexpr int64_t kPages = 24;

class PrefixCacheTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    TinyModel model;
    model.config.max_position_embeddings = kContext;
    WriteTinyModel(scratch_.path(), model);
  }

  std::unique_ptr<Engine> Open(std::shared_ptr<Backend> backend) const {
    EngineOptions options;
    options.context = kContext;
    options.kv_tokens = kPages * kKvPageTokens;
    options.max_pass_rows = 100;  // so that passes end within pages
    options.max_sequences = 2;
    return Engine::Open(std::move(backend), OpenModelFiles(scratch_.path().string()), options);
  }

  TempDir scratch_;
};

std::vector<int32_t> Ids(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(3 + random() % 90);
  return ids;
}

std::vector<int32_t> Joined(std::vector<int32_t> head, const std::vector<int32_t>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

GenerateRequest Request(std::vector<int32_t> prompt, int top_logprobs = -1) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = 5;
  request.ignore_eos = true;
  request.top_logprobs = top_logprobs;
  request.prompt_logprobs = top_logprobs >= 0;
  request.hash_logits = true;
  return request;
}

struct Outcome {
  GenerateResult result;
  int64_t reused = 0;
};

Outcome RunWith(Engine& engine, PrefixCache* prefixes, const GenerateRequest& request) {
  Generation generation(engine, request, prefixes);
  while (!generation.done()) {
    const StepItem item = generation.Next(engine.shape().max_rows);
    engine.Step({&item, 1});
    generation.Accept(item, 0);
  }
  return {generation.result(), generation.prompt_reused()};
}

void ExpectSame(const TokenLogprob& a, const TokenLogprob& b) {
  EXPECT_EQ(a.logprob, b.logprob);
  EXPECT_EQ(a.top, b.top);
}

void ExpectSame(const GenerateResult& a, const GenerateResult& b) {
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.logits_sha256, b.logits_sha256);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) ExpectSame(a.logprobs[i], b.logprobs[i]);
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
    SCOPED_TRACE("prompt token " + std::to_string(i));
    ASSERT_EQ(a.prompt_logprobs[i].has_value(), b.prompt_logprobs[i].has_value());
    if (a.prompt_logprobs[i]) ExpectSame(*a.prompt_logprobs[i], *b.prompt_logprobs[i]);
  }
}

TEST_P(PrefixCacheTest, GivesTheBitsOfComputingEverything) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  PrefixCache prefixes(*engine);
  const std::vector<int32_t> head = Ids(200, 1);
  // Prompts that begin alike for less than a page, in the midst of a page, at its end, and whole; tokens reused without
  // logprobs and with them.
  struct Case {
    int64_t shared, own;
    int64_t reused, reused_with_logprobs;
  };
  const Case cases[] = {{200, 30, 0, 0},    {200, 30, 192, 128}, {200, 50, 192, 128}, {192, 1, 192, 128},
                        {192, 0, 128, 128}, {128, 70, 128, 64},  {127, 70, 64, 0},    {63, 100, 0, 0}};
  for (const int top : {2, -1}) {
    uint32_t seed = 10;
    for (const Case& c : cases) {
      SCOPED_TRACE("top " + std::to_string(top) + ", shared " + std::to_string(c.shared));
      const auto middle = head.begin() + c.shared;
      const auto request = Request(Joined({head.begin(), middle}, Ids(c.own, ++seed)), top);
      const Outcome with = RunWith(*engine, &prefixes, request);
      ExpectSame(with.result, RunWith(*engine, nullptr, request).result);
      if (top >= 0) {
        EXPECT_EQ(with.reused, c.reused_with_logprobs);
      } else {
        EXPECT_GE(with.reused, c.reused);  // by now the prompts with logprobs are known too
      }
    }
  }
}

// Also where their tokens are the same; the bits are.
TEST_P(PrefixCacheTest, PromptsOfAnotherSaltShareNothing) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  PrefixCache prefixes(*engine);
  GenerateRequest request = Request(Ids(150, 1));
  const Outcome first = RunWith(*engine, &prefixes, request);
  EXPECT_EQ(first.reused, 0);
  int64_t reused = 0;
  for (const char* salt : {"", "a", "b", "a", "ab", "", "b"}) {
    request.cache_salt = salt;
    const Outcome outcome = RunWith(*engine, &prefixes, request);
    ExpectSame(outcome.result, first.result);
    EXPECT_TRUE(outcome.reused == 0 || outcome.reused == 128) << outcome.reused;
    reused += outcome.reused;
  }
  EXPECT_EQ(reused, 4 * 128);  // "", and the second time of each salt
}

TEST_P(PrefixCacheTest, ContinuesWhatWasGenerated) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  PrefixCache prefixes(*engine);
  GenerateRequest first = Request(Ids(100, 2));
  first.max_tokens = 60;
  const Outcome told = RunWith(*engine, &prefixes, first);
  const GenerateRequest next = Request(Joined(Joined(first.prompt, told.result.ids), Ids(7, 3)));
  const Outcome with = RunWith(*engine, &prefixes, next);
  EXPECT_EQ(with.reused, 128);
  ExpectSame(with.result, RunWith(*engine, nullptr, next).result);
}

TEST_P(PrefixCacheTest, ComputesLogprobsThatNobodyAskedForYet) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  PrefixCache prefixes(*engine);
  const std::vector<int32_t> prompt = Ids(200, 4);
  const std::pair<int, int64_t> steps[] = {{-1, 0}, {1, 0}, {3, 0}, {1, 128}, {0, 128}, {3, 128}, {4, 0}, {-1, 192}};
  for (const auto& [top, reused] : steps) {
    SCOPED_TRACE(top);
    const Outcome with = RunWith(*engine, &prefixes, Request(prompt, top));
    EXPECT_EQ(with.reused, reused);
    ExpectSame(with.result, RunWith(*engine, nullptr, Request(prompt, top)).result);
  }
}

TEST_P(PrefixCacheTest, UnusedPagesGiveWayLeastRecentlyUsedFirst) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  auto prefixes = std::make_unique<PrefixCache>(*engine);
  const auto reused = [&](uint32_t seed) {
    return static_cast<int64_t>(prefixes->Find(Ids(193, seed), -1).pages.size());
  };
  for (uint32_t seed = 0; seed < 4; ++seed) RunWith(*engine, prefixes.get(), Request(Ids(193, seed)));
  EXPECT_EQ(engine->free_tokens(), (kPages - 12) * kKvPageTokens);
  EXPECT_EQ(prefixes->free_tokens(), kPages * kKvPageTokens);
  EXPECT_EQ(reused(0), 3);  // used again, so 1 is the oldest
  EXPECT_TRUE(prefixes->MakeRoom((kPages - 12 + 2) * kKvPageTokens));
  EXPECT_EQ(engine->free_tokens(), (kPages - 10) * kKvPageTokens);
  EXPECT_EQ(reused(1), 1);
  EXPECT_EQ(reused(2), 3);
  EXPECT_EQ(reused(0), 3);

  // A sequence keeps what it shares, whatever the cache forgets.
  const GenerateRequest request = Request(Ids(193, 3));
  Generation running(*engine, request, prefixes.get());
  EXPECT_EQ(running.prompt_reused(), 192);
  EXPECT_EQ(prefixes->free_tokens(), (kPages - 4) * kKvPageTokens);
  EXPECT_FALSE(prefixes->MakeRoom((kPages - 3) * kKvPageTokens));
  EXPECT_EQ(reused(0), 3);  // nothing was forgotten in vain
  EXPECT_TRUE(prefixes->MakeRoom((kPages - 4) * kKvPageTokens));
  EXPECT_EQ(reused(0), 0);
  while (!running.done()) {
    const StepItem item = running.Next(engine->shape().max_rows);
    engine->Step({&item, 1});
    running.Accept(item, 0);
  }
  ExpectSame(running.result(), RunWith(*engine, nullptr, request).result);
  running.Cancel();
}

// Pages of a match are nobody's to take, whether a sequence holds them as well or not.
TEST_P(PrefixCacheTest, PagesOfAMatchAreNotFree) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  PrefixCache prefixes(*engine);
  for (uint32_t seed = 0; seed < 2; ++seed) RunWith(*engine, &prefixes, Request(Ids(193, seed)));
  const PrefixCache::Match match = prefixes.Find(Ids(193, 0), -1);
  ASSERT_EQ(match.pages.size(), 3u);
  EXPECT_EQ(prefixes.free_tokens(), kPages * kKvPageTokens);
  EXPECT_EQ(prefixes.free_tokens(match.pages), (kPages - 3) * kKvPageTokens);
  EXPECT_FALSE(prefixes.MakeRoom((kPages - 2) * kKvPageTokens, match.pages));
  EXPECT_EQ(prefixes.Find(Ids(193, 1), -1).pages.size(), 3u);  // nothing was forgotten in vain
  {
    const Generation running(*engine, Request(Ids(193, 0)), &prefixes);
    EXPECT_EQ(prefixes.free_tokens(), (kPages - 4) * kKvPageTokens);
    EXPECT_EQ(prefixes.free_tokens(match.pages), (kPages - 4) * kKvPageTokens);  // one page is its own
    const Generation second(*engine, Request(Ids(193, 0)), &prefixes);
    EXPECT_EQ(prefixes.free_tokens(), (kPages - 5) * kKvPageTokens);
  }
  EXPECT_EQ(prefixes.free_tokens(), kPages * kKvPageTokens);
  EXPECT_TRUE(prefixes.MakeRoom((kPages - 3) * kKvPageTokens, match.pages));
  EXPECT_EQ(engine->free_tokens(), (kPages - 3) * kKvPageTokens);
}

TEST_P(PrefixCacheTest, EveryPageComesBack) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  {
    PrefixCache prefixes(*engine);
    for (uint32_t seed = 0; seed < 30; ++seed) {
      RunWith(*engine, &prefixes, Request(Joined(Ids(70, seed % 3), Ids(150, seed)), seed % 2 == 0 ? 0 : -1));
    }
    EXPECT_LT(engine->free_tokens(), kPages * kKvPageTokens);
    EXPECT_EQ(prefixes.free_tokens(), kPages * kKvPageTokens);
  }
  EXPECT_EQ(engine->free_tokens(), kPages * kKvPageTokens);
}

TEST_P(PrefixCacheTest, SharedTokensAreNotTakenBack) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto engine = Open(backend);
  const auto sequence = engine->NewSequence(kContext);
  sequence->Append(Ids(130, 5));
  for (const int64_t tokens : {100, 30}) {
    const StepItem item{sequence.get(), tokens, StepOutput::kNone};
    engine->Step({&item, 1});
  }
  const KvPage shared = sequence->page(0);
  sequence->Truncate(64);
  EXPECT_THROW(sequence->Truncate(63), std::logic_error);
  EXPECT_THROW(sequence->page(1), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Backends, PrefixCacheTest, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& test) { return test.param.Name(); });

}  // namespace
}  // namespace stoch::test
