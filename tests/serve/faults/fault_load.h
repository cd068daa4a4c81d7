// SPDX-License-Identifier: Apache-2.0
// Clients of every kind that ask over and over while workers are lost, and compare each answer with the one given alone.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

extern "C" {  // glibc 2.36 forgets to say so
#include <sys/pidfd.h>
}

#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <random>

#include "engine/grammar/grammar_compiler.h"
#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"

namespace stoch::test {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline int NumberFromEnvironment(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

// Requests of many kinds: greedy and drawn, with logprobs, stop strings, penalties, hashes, several choices, and held to a schema.
inline std::vector<Json> Requests() {
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

// The stream that a client got, put together by choice: every text, token and logprob, in order. Errors: std::runtime_error for a
// stream that does not end as it should.
inline Json Collect(const Reply& reply) {
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

inline Json Ask(uint16_t port, const Json& request) {
  return Collect(Call(port, "POST", "/v1/completions", request.dump()));
}

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

inline Health Look(uint16_t port) {
  const Reply reply = Call(port, "GET", "/health");
  return {reply.status, reply.Json()["workers"].get<std::vector<Json>>()};
}

inline Health WaitUntilReady(uint16_t port) {
  const auto deadline = Clock::now() + seconds(60);
  for (;;) {
    Health health = Look(port);
    if (health.all_ready()) return health;
    if (Clock::now() > deadline) throw std::runtime_error("no worker is ready");
    std::this_thread::sleep_for(milliseconds(5));
  }
}

// Until the process is gone, reaped or not.
inline void WaitForEnd(pid_t pid) {
  const int process = pidfd_open(pid, 0);
  if (process < 0) return;  // reaped
  pollfd event = {process, POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 60'000), 1);
  close(process);
}

inline constexpr char kTokens[] = "stoch_generated_tokens_total";

class WorkerFaults : public testing::Test {
 protected:
  // Clients that ask for anything, over and over, until `body` returns.
  template <class Body>
  void UnderLoad(uint16_t port, Body body) {
    UnderLoad(port, AskedAlone(port), NumberFromEnvironment("STOCH_FAULT_CLIENTS", 16), body);
  }
  // The answers to Requests() of a server that has nothing else to do.
  static std::vector<Json> AskedAlone(uint16_t port) {
    std::vector<Json> alone;
    for (const Json& request : Requests()) alone.push_back(Ask(port, request));
    return alone;
  }
  // Compares with these answers.
  template <class Body>
  void UnderLoad(uint16_t port, const std::vector<Json>& alone, int num_clients, Body body) {
    const std::vector<Json> requests = Requests();
    std::atomic<bool> done = false;
    std::vector<std::thread> clients;
    for (int c = 0; c < num_clients; ++c) {
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
    std::exception_ptr failure;  // of body: the clients end first
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
    done = true;
    for (std::thread& client : clients) client.join();
    if (failure) std::rethrow_exception(failure);
    EXPECT_GT(answers_, 0);
    EXPECT_TRUE(wrong_.empty()) << wrong_.size() << " of " << answers_ << ", the first: " << wrong_.front();
  }

  std::mt19937 random_{7};
  std::mutex mutex_;
  int answers_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace stoch::test
