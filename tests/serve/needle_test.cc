// SPDX-License-Identifier: Apache-2.0
// The promise: a request's tokens and logprobs do not depend on who else is served, nor on what was served before.
//
// STOCH_NEEDLE_ROUNDS says how many rounds are run (the ctest entry serve_needle_200 runs 200), STOCH_TEST_DEVICE
// where.

#include <cctype>
#include <cmath>
#include <iostream>
#include <random>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

constexpr int kNeighbours = 31;
constexpr int kRounds = 4;

struct Setting {
  const char* sc;
  bool prefix_reuse;
};

class Needle : public ServerFixture, public testing::WithParamInterface<Setting> {
 protected:
  static constexpr int64_t kLength = 256;

  Needle() : ServerFixture(kLength) {}

  void SetUp() override {
    engine_options_.max_sequences = 12;        // fewer than ask, so that they come and go
    engine_options_.kv_tokens = 10 * kLength;  // and wait for each other's pages
    engine_options_.sc = ParseScModelConfig(std::vector<std::string>{GetParam().sc});
    runner_options_.prefix_reuse = GetParam().prefix_reuse;
    StartServer();
  }

  static std::vector<int> RandomIds(std::mt19937& random, size_t least, size_t most) {
    std::vector<int> ids(least + random() % (most - least + 1));
    for (int& id : ids) id = static_cast<int>(3 + random() % 90);
    return ids;
  }

  static Json RandomRequest(std::mt19937& random, const std::vector<int>& needle) {
    std::vector<int> prompt = RandomIds(random, 1, 120);
    // Many begin as the needle does.
    if (random() % 2 == 0) {
      const auto common = static_cast<std::ptrdiff_t>(random() % (needle.size() + 1));
      prompt.resize(1 + prompt.size() % 40);
      prompt.insert(prompt.begin(), needle.begin(), needle.begin() + common);
    }
    Json body = {{"prompt", prompt},         {"max_tokens", 1 + random() % 25}, {"temperature", random() % 2},
                 {"seed", random() % 100},   {"ignore_eos", random() % 2 == 0}, {"stream", random() % 2 == 0},
                 {"echo", random() % 4 == 0}};
    if (random() % 2 == 0) body["logprobs"] = random() % 4;
    return body;
  }

  // Sends it and stays to the end, or leaves after a while.
  void BeNeighbour(const Json& body, bool leave, std::chrono::milliseconds delay) {
    std::this_thread::sleep_for(delay);
    HttpClient client(port());
    const std::string text = body.dump();
    client.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                   std::to_string(text.size()) + "\r\n\r\n" + text);
    if (leave) {
      std::this_thread::sleep_for(delay);
      client.Close();
    } else {
      EXPECT_EQ(client.Receive().status, 200);
      SeeHowManyRun();
    }
  }
  void SeeHowManyRun() {
    const double running = Metric("stoch_requests_running");
    const std::lock_guard lock(mutex_);
    most_running_ = std::max(most_running_, running);
  }

  std::mutex mutex_;
  double most_running_ = 0;
};

// Numbers are printed so that they read back exactly: equal text is equal bits.
std::string Bits(const Json& choices) { return choices.dump(); }

TEST_P(Needle, IsTheSameAloneAndInACrowd) {
  const int rounds = NumberFromEnvironment("STOCH_NEEDLE_ROUNDS", kRounds);
  std::mt19937 random(7);
  std::vector<int> last = RandomIds(random, 65, 200);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    // A prompt that nobody asked about yet, and one that begins as the last round's.
    std::vector<int> known(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(last.size() / 2));
    const std::vector<int> tail = RandomIds(random, 20, 100);
    known.insert(known.end(), tail.begin(), tail.end());
    last = RandomIds(random, 65, 200);
    const Json needle = {{"prompt", {last, known}}, {"max_tokens", 16}, {"temperature", round % 2},
                         {"seed", round},           {"logprobs", 2},    {"echo", round % 3 != 0},
                         {"ignore_eos", true}};
    const Json alone = Complete(needle)["choices"];
    std::vector<std::thread> crowd;
    for (int i = 0; i < kNeighbours; ++i) {
      crowd.emplace_back([this, body = RandomRequest(random, last), leave = random() % 3 == 0,
                          delay = std::chrono::milliseconds(random() % 40)] { BeNeighbour(body, leave, delay); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    const Json among = Complete(needle)["choices"];
    SeeHowManyRun();
    const Json streamed = Collect(needle);
    for (std::thread& neighbour : crowd) neighbour.join();
    EXPECT_EQ(Bits(alone), Bits(among)) << "round " << round;
    EXPECT_EQ(Bits(alone), Bits(streamed)) << "round " << round;
  }
  const bool reuses = GetParam().prefix_reuse && engine_->chunk_invariant();
  EXPECT_EQ(Metric("stoch_prompt_tokens_reused_total") > 0, reuses);
  EXPECT_GT(most_running_, 1);
  std::cout << "needle on " << DeviceName(engine_->backend().devices().front()) << ": " << rounds << " rounds among "
            << kNeighbours << ", " << GetParam().sc << ", "
            << Metric("stoch_requests_finished_total{reason=\"cancelled\"}") << " left, "
            << Metric("stoch_prompt_tokens_reused_total") << " prompt tokens reused" << std::endl;
}

// The same prompt again and again, in every way that prefixes are reused: what was computed first, without reuse,
// stays.
TEST_P(Needle, IsTheSameEveryTime) {
  std::mt19937 random(8);
  Json body = {{"prompt", RandomIds(random, 200, 200)}, {"max_tokens", 6}, {"logprobs", 3}, {"ignore_eos", true}};
  body["echo"] = true;
  const Json first = Complete(body)["choices"];
  EXPECT_EQ(Metric("stoch_prompt_tokens_reused_total"), 0);
  EXPECT_EQ(Bits(Complete(body)["choices"]), Bits(first));
  EXPECT_EQ(Bits(Collect(body)), Bits(first));
  const bool reuses = GetParam().prefix_reuse && engine_->chunk_invariant();
  EXPECT_EQ(Metric("stoch_prompt_tokens_reused_total"), reuses ? 2 * 128 : 0);
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_kv_cache_usage_ratio") == 0; }));
  server_.reset();
  EXPECT_EQ(engine_->free_tokens(), engine_options_.kv_tokens);
}

// The inverse: what is compared shows one flipped bit of one logprob, and another seed.
TEST_P(Needle, WouldShowOneFlippedBit) {
  Json body = {{"prompt", {5, 6, 7}}, {"max_tokens", 4}, {"logprobs", 1}, {"ignore_eos", true}};
  const Json answer = Complete(body)["choices"];
  Json flipped = answer;
  Json& logprob = flipped[0]["logprobs"]["token_logprobs"][2];
  logprob = std::nextafter(logprob.get<double>(), 0.0);
  EXPECT_NE(Bits(answer), Bits(flipped));
  body["seed"] = 1;
  EXPECT_NE(Bits(answer), Bits(Complete(body)["choices"]));
}

// Chunked prompts and shared passes, with and without reuse; windows of their own; one sequence per pass.
INSTANTIATE_TEST_SUITE_P(Configurations, Needle,
                         testing::Values(Setting{"preset=halved", true}, Setting{"preset=halved", false},
                                         Setting{"attention=per_head", true},
                                         Setting{"granularity=per_tensor,chunk_d=0", true}),
                         [](const auto& test) {
                           std::string name = test.param.sc;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name + (test.param.prefix_reuse ? "_reuse" : "_alone");
                         });

}  // namespace
}  // namespace stoch::test
