// SPDX-License-Identifier: Apache-2.0
// Streams that are taken up again: after a disconnect, by somebody else, and after a kill -9 of the server.

#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <random>

#include "tests/serve/journal/kept_streams.h"
#include "tests/serve/serving.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

double Metric(uint16_t port, const std::string& name) {
  const std::string text = "\n" + Call(port, "GET", "/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

bool ComesTo(uint16_t port, const std::string& name, double value) {
  const auto deadline = Clock::now() + seconds(20);
  while (Metric(port, name) != value) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

Json LongRequest() { return {{"prompt", "Once upon a time"}, {"max_tokens", 120}, {"ignore_eos", true}, {"seed", 3}}; }

class Streams : public testing::Test {
 protected:
  std::vector<std::string> Words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"--journal", (folder_ / "journal").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  TempDir folder_;
};

TEST_F(Streams, GoOnWhereTheClientWas) {
  Serving server(Words());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  EXPECT_EQ(Call(port, "GET", "/health").Json()["journal"], "ok");
  const double total = Metric(port, "stoch_device_memory_bytes{kind=\"total\",worker=\"0\"}");
  const double used = Metric(port, "stoch_device_memory_bytes{kind=\"used\",worker=\"0\"}");
  EXPECT_GT(used, 0);
  EXPECT_LT(used, total);
  KeptStream alone("alone", LongRequest());
  EXPECT_EQ(alone.Read(port), 200);
  ASSERT_TRUE(alone.done());
  const auto expect_same = [&](const KeptStream& stream) {
    EXPECT_TRUE(stream.done());
    EXPECT_EQ(stream.disorder(), "");
    const std::vector<std::string> events = stream.Events(), expected = alone.Events();
    ASSERT_EQ(events.size(), expected.size());
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      EXPECT_EQ(Json::parse(events[i])["choices"], Json::parse(expected[i])["choices"]) << i;
    }
  };

  // Leaves and comes again and again; whoever leaves frees its place.
  KeptStream stream("leaves", LongRequest());
  for (const size_t events : {1, 7, 30}) {
    EXPECT_EQ(stream.Read(port, events), 200);
    EXPECT_FALSE(stream.done());
    EXPECT_TRUE(ComesTo(port, "stoch_requests_running", 0));
  }
  EXPECT_EQ(stream.Read(port), 200);
  expect_same(stream);

  // Whoever asks gets it, and the one before is cut.
  KeptStream shared("shared", LongRequest());
  EXPECT_EQ(shared.Read(port, 2), 200);
  HttpClient first(port);
  first.SendRaw("GET /v1/streams/cmpl-shared HTTP/1.0\r\n\r\n");
  first.ReadUntil("cmpl-shared:3");
  EXPECT_EQ(shared.Read(port), 200);
  expect_same(shared);
  EXPECT_EQ(first.ReadToEnd().find("[DONE]"), std::string::npos);

  // All of it, once more, though it has ended.
  const Reply whole = Call(port, "GET", "/v1/streams/cmpl-shared");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.Events().size(), shared.Events().size());
  // What is no stream has no place there.
  Call(port, "POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})", {{"X-Request-Id", "plain"}});
  EXPECT_EQ(Call(port, "GET", "/v1/streams/cmpl-plain").status, 404);
}

TEST_F(Streams, AskForTheKeyAndForWhatIsThere) {
  Serving server(Words({"--api-key", "k"}));
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  KeptStream stream("s", LongRequest());
  const std::map<std::string, std::string> key = {{"Authorization", "Bearer k"}};
  EXPECT_EQ(stream.Read(port, 3, key), 200);
  EXPECT_EQ(stream.Read(port), 401);
  const auto ask = [&](const std::string& id, const std::string& last) {
    return Call(port, "GET", "/v1/streams/" + id, "", {{"Authorization", "Bearer k"}, {"Last-Event-ID", last}}).status;
  };
  EXPECT_EQ(ask("cmpl-other", ""), 404);
  for (const char* last : {"cmpl-s", "cmpl-s:", "cmpl-s:x", "cmpl-s:-1", "cmpl-other:1", "1", "cmpl-s:1x"}) {
    EXPECT_EQ(ask("cmpl-s", last), 400) << last;
  }
  EXPECT_EQ(Call(port, "POST", "/v1/streams/cmpl-s", "{}", key).status, 405);
  EXPECT_EQ(Call(port, "HEAD", "/v1/streams/cmpl-s", "", key).status, 405);
  EXPECT_EQ(stream.Read(port, SIZE_MAX, key), 200);
  EXPECT_TRUE(stream.done());

  Serving without;
  ASSERT_TRUE(without.Logs("ready")) << without.Log();
  const Reply refused = Call(without.port(), "GET", "/v1/streams/cmpl-s");
  EXPECT_EQ(refused.status, 404);
  EXPECT_NE(refused.body.find("--journal"), std::string::npos) << refused.body;
}

TEST_F(Streams, AJournalIsOfOneServer) {
  Serving server(Words());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const std::vector<std::string> refused[] = {Words(),
                                              {"--journal", (folder_ / "no/folder").string()},
                                              {"--journal", kDemo + "/config.json"},
                                              Words({"--in-process"}),
                                              Words({"--journal-sync", "sometimes"}),
                                              {"--journal-sync", "full"}};
  for (const std::vector<std::string>& words : refused) {
    Serving other(words);
    EXPECT_EQ(other.Wait(seconds(20)), 2) << words.back();
    EXPECT_NE(other.Log().find("error: "), std::string::npos) << other.Log();
  }
}

// Of many kinds.
std::vector<KeptStream> ManyStreams(const std::string& round) {
  std::vector<KeptStream> streams;
  const char* prompts[] = {"Once upon a time", "The little dog", "A",
                           "One day, a girl named Lily went to the park and"};
  for (int i = 0; i < 12; ++i) {
    Json request = {{"prompt", prompts[i % 4]}, {"max_tokens", 12 + 6 * i}, {"seed", i}};
    request["ignore_eos"] = i % 2 == 0;
    if (i % 3 == 0) request["temperature"] = 0;
    if (i % 4 == 1) request["logprobs"] = 2;
    if (i % 4 == 2) request["stop"] = {"the", "Lily"};
    if (i % 5 == 1) request["frequency_penalty"] = 0.5;
    if (i % 5 == 2) request["return_logits_sha256"] = true;
    if (i % 6 == 3) request["echo"] = true;
    streams.emplace_back(round + std::to_string(i), request);
  }
  return streams;
}

TEST_F(Streams, OutliveAKilledServer) {
  const auto sync = {"normal", "full"};
  std::vector<std::vector<std::string>> alone;
  std::mt19937 random(11);
  int taken_up = 0;
  const int rounds = std::getenv("STOCH_FAULT_MOMENTS") == nullptr ? 6 : std::atoi(std::getenv("STOCH_FAULT_MOMENTS"));
  for (int round = 0; round < rounds; ++round) {
    std::vector<KeptStream> streams = ManyStreams("s");
    const std::string how = *(sync.begin() + round % 2);
    std::atomic<uint16_t> port = 0;
    std::atomic<bool> over = false;
    if (alone.empty()) {
      Serving server;
      ASSERT_TRUE(server.Logs("ready")) << server.Log();
      for (KeptStream& stream : streams) {
        EXPECT_EQ(stream.Read(server.port()), 200);
        EXPECT_TRUE(stream.done());
        alone.push_back(stream.Events());
      }
      continue;
    }
    std::vector<std::thread> clients;
    for (KeptStream& stream : streams) {
      clients.emplace_back([&] {
        while (!stream.done() && !over) {
          if (port == 0 || stream.Read(port) == 0) std::this_thread::sleep_for(milliseconds(5));
        }
      });
    }
    for (int life = 0; life < 4; ++life) {
      Serving server(Words({"--journal-sync", how}));
      ASSERT_TRUE(server.Logs("ready")) << server.Log();
      port = server.port();
      if (life < 3) {
        std::this_thread::sleep_for(milliseconds(random() % 120));
        port = 0;
        server.Signal(SIGKILL);
        server.Wait(seconds(5));
        continue;
      }
      for (std::thread& client : clients) client.join();
      over = true;
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_EQ(streams[i].disorder(), "") << i;
      taken_up += streams[i].taken_up();
      const std::vector<std::string> events = streams[i].Events();
      EXPECT_EQ(events, alone[i]) << round << ", stream " << i;
    }
  }
  EXPECT_GT(taken_up, 5);
  std::cout << taken_up << " streams taken up" << std::endl;
}

}  // namespace
}  // namespace stoch::test
