// SPDX-License-Identifier: Apache-2.0
// Fewer pages than the sequences that run ask for: some give theirs back and go on later, and no answer shows it.

#include <atomic>
#include <memory>
#include <random>

#include "engine/speculation/ngram_drafts.h"
#include "models/sc_model_config.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

struct Setting {
  const char* name;
  const char* sc;
  bool prefix_reuse;
  bool drafts = false;  // passes check guesses, right and wrong ones, whatever that costs
};

// Look-ups in the sequence, each told as if it was sure.
class SureDrafts final : public DraftSource {
 public:
  std::vector<DraftedToken> Propose(std::span<const int32_t> ids, int64_t most) override {
    std::vector<DraftedToken> drafts = source_.Propose(ids, most);
    for (DraftedToken& draft : drafts) draft.likely = 1;
    return drafts;
  }

 private:
  NgramDrafts source_;
};

class Preemption : public ServerFixture, public testing::WithParamInterface<Setting> {
 protected:
  static constexpr int64_t kLength = 256;
  static constexpr int64_t kPages = 5;  // of sequences of up to four

  Preemption() : ServerFixture(kLength) {
    engine_options_.max_sequences = 6;
    engine_options_.kv_tokens = kPages * 64;
    engine_options_.sc = ParseScModelConfig(std::vector<std::string>{GetParam().sc});
    runner_options_.prefix_reuse = GetParam().prefix_reuse;
  }

  // Starts the server again, with guesses.
  void StartAgainWithDrafts() {
    server_.reset();
    engine_.reset();
    engine_options_.draft_tokens = 7;
    engine_options_.make_drafts = [] { return std::make_unique<SureDrafts>(); };
    StartServer();
  }

  // Of all kinds, and long.
  static std::vector<Json> Requests() {
    std::mt19937 random(3);
    std::vector<Json> requests;
    for (int i = 0; i < 14; ++i) {
      std::vector<int> prompt(3 + random() % 70);
      for (int& id : prompt) id = static_cast<int>(3 + random() % 90);
      Json request = {{"prompt", prompt}, {"max_tokens", 90 + random() % 90}, {"seed", i}, {"ignore_eos", true}};
      request["temperature"] = i % 2;
      if (i % 3 == 0) request["logprobs"] = 2;
      if (i % 6 == 0) request["echo"] = true;
      if (i % 4 == 1) request["frequency_penalty"] = 0.4;
      if (i % 5 == 2) request["return_logits_sha256"] = true;
      if (i % 7 == 3) request["n"] = 2;
      requests.push_back(request);
    }
    return requests;
  }
};

TEST_P(Preemption, EveryAnswerIsTheOneGivenAlone) {
  std::atomic<bool> hold = false;
  before_attention_ = [&](int64_t) {
    while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  StartServer();
  const std::vector<Json> requests = Requests();
  std::vector<Json> alone;
  for (const Json& request : requests) alone.push_back(Complete(request)["choices"]);
  if (GetParam().drafts) StartAgainWithDrafts();
  const double alone_preempted = Metric("stoch_sequences_preempted_total");  // two choices of one request

  std::vector<Json> among(requests.size());
  std::vector<std::thread> clients;
  hold = true;  // until all of them are there
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] { among[i] = i % 2 == 0 ? Collect(requests[i]) : Complete(requests[i])["choices"]; });
  }
  EXPECT_TRUE(Eventually([&] {
    return Metric("stoch_requests_running") + Metric("stoch_requests_waiting") >= static_cast<double>(requests.size());
  }));
  hold = false;
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(among[i], alone[i]) << i << requests[i];
  EXPECT_GT(Metric("stoch_sequences_preempted_total"), alone_preempted);
  EXPECT_EQ(Metric("stoch_draft_tokens_accepted_total") > 0, GetParam().drafts);
  EXPECT_EQ(Metric("stoch_draft_tokens_total") > Metric("stoch_draft_tokens_accepted_total"), GetParam().drafts);
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_kv_cache_usage_ratio") == 0; }));
  EXPECT_EQ(Metric("stoch_requests_waiting"), 0);
  server_.reset();
  EXPECT_EQ(engine_->free_tokens(), kPages * 64);
}

// Clients that leave while their sequences run, wait, or wait again.
TEST_P(Preemption, ThoseThatLeaveFreeTheirPages) {
  StartServer();
  const std::vector<Json> requests = Requests();
  const Json alone = Complete(requests[5])["choices"];
  std::minstd_rand random(5);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (const Json& request : requests) {
      const std::string body = request.dump();
      clients.push_back(std::make_unique<HttpClient>(port()));
      clients.back()->SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body);
    }
    std::thread asks([&] { EXPECT_EQ(Complete(requests[5])["choices"], alone); });
    for (auto& client : clients) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 15));
      client->Close();
    }
    asks.join();
    EXPECT_TRUE(Eventually([this] { return Metric("stoch_kv_cache_usage_ratio") == 0; }));
  }
  EXPECT_EQ(Metric("stoch_requests_running"), 0);
  EXPECT_EQ(Metric("stoch_requests_waiting"), 0);
}

// Prompts in chunks with and without reuse; prompts as one window, whose ids are stepped again; one sequence per pass.
INSTANTIATE_TEST_SUITE_P(Configurations, Preemption,
                         testing::Values(Setting{"Reuse", "preset=halved", true},
                                         Setting{"NoReuse", "preset=halved", false},
                                         Setting{"Drafts", "preset=halved", true, true},
                                         Setting{"Window", "attention=per_head", true},
                                         Setting{"Coupled", "granularity=per_tensor,chunk_d=0", true}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace stoch::test
