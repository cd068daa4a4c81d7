// SPDX-License-Identifier: Apache-2.0
// Workers that are killed, stopped and crashed while clients read: every answer is the one given alone.

#include <gtest/gtest.h>
#include <poll.h>

extern "C" {  // glibc 2.36 forgets to say so
#include <sys/pidfd.h>
}

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>

#include "engine/grammar/grammar_compiler.h"
#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

int NumberFromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

// Of many kinds: greedy and drawn, with logprobs, stop strings, penalties, hashes, several choices, and held to a schema.
std::vector<Json> Requests() {
  std::vector<Json> requests;
  const char* prompts[] = {"Once upon a time", "The little dog", "A",
                           "One day, a girl named Lily went to the park and"};
  for (int i = 0; i < 12; ++i) {
    Json request = {{"prompt", prompts[i % 4]}, {"max_tokens", 12 + 3 * i}, {"seed", i}, {"stream", true}};
    request["ignore_eos"] = i % 2 == 0;
    if (i % 3 == 0) request["temperature"] = 0;
    if (i % 4 == 1) request["logprobs"] = 2;
    if (i % 4 == 2) request["n"] = 3;
    if (i == 3) request["stop"] = {" the", " was"};
    if (i == 5) request["echo"] = true;
    if (i == 6) request["frequency_penalty"] = 0.7;
    if (i == 7) request["return_logits_sha256"] = true;
    requests.push_back(request);
  }
  if (!WhyNoGrammars().empty()) return requests;
  const Json schema = {{"type", "object"},
                       {"properties", {{"age", {{"type", "integer"}}}, {"name", {{"enum", {"Tim", "Lily"}}}}}},
                       {"required", {"age", "name"}}};
  for (int seed = 0; seed < 4; ++seed) {
    requests.push_back({{"prompt", "A"},
                        {"max_tokens", 60},
                        {"seed", seed},
                        {"stream", true},
                        {"temperature", 1},
                        {"n", 2},
                        {"guided_json", schema}});
  }
  return requests;
}

// What a client got, put together by choice: every text, token and logprob, in order. Errors: std::runtime_error for a
// stream that does not end as it should.
Json Collect(const Reply& reply) {
  if (reply.status != 200) throw std::runtime_error(std::to_string(reply.status) + " " + reply.body);
  std::vector<std::string> events = reply.Events();
  if (events.empty() || events.back() != "[DONE]") throw std::runtime_error("no end: " + reply.body);
  events.pop_back();
  std::map<int, Json> choices;
  for (const std::string& event : events) {
    const Json chunk = Json::parse(event);
    if (chunk.contains("error")) throw std::runtime_error(event);
    for (const Json& piece : chunk["choices"]) {
      Json& choice = choices[piece["index"].get<int>()];
      if (choice.is_null()) choice = {{"text", ""}};
      choice["text"] = choice["text"].get<std::string>() + piece["text"].get<std::string>();
      choice["finish_reason"] = piece["finish_reason"];
      if (piece.contains("logits_sha256")) choice["logits_sha256"] = piece["logits_sha256"];
      if (!piece["logprobs"].is_object()) continue;
      for (const auto& [name, values] : piece["logprobs"].items()) {
        for (const Json& value : values) choice["logprobs"][name].push_back(value);
      }
    }
  }
  Json all = Json::array();
  for (const auto& [index, choice] : choices) all.push_back(choice);
  return all;
}

Json Ask(uint16_t port, const Json& request) { return Collect(Call(port, "POST", "/v1/completions", request.dump())); }

struct Health {
  int status = 0;
  std::vector<Json> workers;
  bool all_ready() const {
    for (const Json& worker : workers) {
      if (worker["state"] != "ready") return false;
    }
    return !workers.empty();
  }
};

Health Look(uint16_t port) {
  const Reply reply = Call(port, "GET", "/health");
  return {reply.status, reply.Json()["workers"].get<std::vector<Json>>()};
}

Health WaitUntilReady(uint16_t port) {
  const auto deadline = Clock::now() + seconds(60);
  for (;;) {
    Health health = Look(port);
    if (health.all_ready()) return health;
    if (Clock::now() > deadline) throw std::runtime_error("no worker is ready");
    std::this_thread::sleep_for(milliseconds(5));
  }
}

// Until the process is gone, reaped or not.
void WaitForEnd(pid_t pid) {
  const int process = pidfd_open(pid, 0);
  if (process < 0) return;  // reaped
  pollfd event = {process, POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 60'000), 1);
  close(process);
}

constexpr char kTokens[] = "stoch_generated_tokens_total";

class WorkerFaults : public testing::Test {
 protected:
  // Clients that ask for anything, over and over, until `body` returns.
  template <class Body>
  void UnderLoad(uint16_t port, Body body) {
    const std::vector<Json> requests = Requests();
    std::vector<Json> alone;
    for (const Json& request : requests) alone.push_back(Ask(port, request));
    std::atomic<bool> done = false;
    std::vector<std::thread> clients;
    for (int c = 0; c < NumberFromEnvironment("STOCH_FAULT_CLIENTS", 16); ++c) {
      clients.emplace_back([&, c] {
        std::minstd_rand random(static_cast<unsigned>(c) + 1);
        while (!done) {
          const size_t i = random() % requests.size();
          try {
            const Json answer = Ask(port, requests[i]);
            const std::lock_guard lock(mutex_);
            ++answers_;
            if (answer != alone[i])
              wrong_.push_back(requests[i].dump() + "\n" + answer.dump() + "\n" + alone[i].dump());
          } catch (const std::exception& error) {
            const std::lock_guard lock(mutex_);
            wrong_.push_back(requests[i].dump() + ": " + error.what());
          }
        }
      });
    }
    body();
    done = true;
    for (std::thread& client : clients) client.join();
    EXPECT_GT(answers_, 0);
    EXPECT_TRUE(wrong_.empty()) << wrong_.size() << " of " << answers_ << ", the first: " << wrong_.front();
  }

  std::mt19937 random_{7};
  std::mutex mutex_;
  int answers_ = 0;
  std::vector<std::string> wrong_;
};

TEST_F(WorkerFaults, EveryAnswerIsTheOneGivenAlone) {
  Serving server({"--stall-limit", "5"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  const int moments = NumberFromEnvironment("STOCH_FAULT_MOMENTS", 12);
  UnderLoad(port, [&] {
    for (int moment = 0; moment < moments; ++moment) {
      const Health before = WaitUntilReady(port);
      // Time for tokens of everybody, however slow the machine: three losses without one are the job's own.
      const double tokens = Metric(port, kTokens) + 200;
      std::this_thread::sleep_for(milliseconds(300 + random_() % 400));
      const auto slowest = Clock::now() + seconds(60);
      while (Metric(port, kTokens) < tokens && Clock::now() < slowest) std::this_thread::sleep_for(milliseconds(10));
      const auto pid = before.workers[0]["pid"].get<pid_t>();
      constexpr int kSignals[] = {SIGKILL, SIGSEGV, SIGSTOP};
      const int signal_number = kSignals[moment % 3];
      kill(pid, signal_number);
      if (signal_number == SIGSTOP) {
        const auto deadline = Clock::now() + seconds(30);
        while (Look(port).workers[0]["pid"] == pid && Clock::now() < deadline) {
          std::this_thread::sleep_for(milliseconds(20));
        }
        continue;
      }
      WaitForEnd(pid);
      // A worker of the demo model is there again so fast that only its number tells. Within a second, or, on a machine
      // that runs somebody else meanwhile, within few answers of the server.
      const auto lost = Clock::now();
      constexpr int kAnswers = 5;
      Health after = Look(port);
      for (int answers = 1; after.status == 200 && after.workers[0]["pid"] == pid; ++answers) {
        if (answers >= kAnswers && Clock::now() > lost + seconds(1)) break;
        after = Look(port);
      }
      EXPECT_TRUE(after.status == 503 || after.workers[0]["pid"] != pid) << moment;
    }
  });
  EXPECT_GE(Metric(port, "stoch_worker_restarts_total"), moments);
  EXPECT_GT(Metric(port, "stoch_sequences_replayed_total"), 0);
  EXPECT_EQ(Metric(port, "stoch_sequences_refused_total"), 0);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(30)), 0);
}

TEST_F(WorkerFaults, TwoReplicasAreNeverBothAway) {
  Serving server({"--replicas", "2"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  std::atomic<bool> done = false;
  std::atomic<int> unavailable = 0;
  WaitUntilReady(port);
  std::thread poller([&] {
    while (!done) unavailable += Look(port).status == 200 ? 0 : 1;
  });
  UnderLoad(port, [&] {
    for (int moment = 0; moment < NumberFromEnvironment("STOCH_FAULT_MOMENTS", 12) / 2; ++moment) {
      const Health before = WaitUntilReady(port);
      std::this_thread::sleep_for(milliseconds(random_() % 300));
      const auto pid = before.workers[random_() % 2]["pid"].get<pid_t>();
      kill(pid, SIGKILL);
      const auto gone = [&] {
        for (const Json& worker : Look(port).workers) {
          if (worker["pid"] == pid) return false;
        }
        return true;
      };
      while (!gone()) std::this_thread::sleep_for(milliseconds(5));
    }
  });
  done = true;
  poller.join();
  EXPECT_EQ(unavailable, 0);
}

// Nothing of a device or of the weights is in the process that speaks to clients.
TEST_F(WorkerFaults, TheGatewayMapsNoDriverAndNoWeights) {
  Serving server;
  ASSERT_TRUE(server.Logs("weights_digest")) << server.Log();
  std::string maps;
  const auto deadline = Clock::now() + seconds(10);
  do {  // the thread that read the weights for their digest is about to let go of them
    std::ostringstream text;
    text << std::ifstream("/proc/" + std::to_string(server.pid()) + "/maps").rdbuf();
    maps = text.str();
  } while (maps.find(".safetensors") != std::string::npos && Clock::now() < deadline);
  ASSERT_FALSE(maps.empty());
  EXPECT_EQ(maps.find("libcuda.so"), std::string::npos);
  EXPECT_EQ(maps.find(".safetensors"), std::string::npos);
}

// A worker that cannot be left alone.
TEST_F(WorkerFaults, WorkersDieWithTheirGateway) {
  Serving server;
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto pid = Look(server.port()).workers[0]["pid"].get<pid_t>();
  server.Signal(SIGKILL);
  EXPECT_EQ(server.Wait(seconds(5)), 128 + SIGKILL);
  const auto deadline = Clock::now() + seconds(5);
  const auto there = [&] {
    std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    return static_cast<bool>(status >> number >> name >> state) && state != "Z";
  };
  while (there() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(there());
}

}  // namespace
}  // namespace stoch::test
