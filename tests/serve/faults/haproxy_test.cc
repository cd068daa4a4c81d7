// SPDX-License-Identifier: Apache-2.0
// Two replicas behind HAProxy as tools/serve/haproxy.cfg has it: one is killed under load, and no client notices. Skipped
// without haproxy; STOCH_REQUIRE_HAPROXY=1 makes that a failure.

#include <gtest/gtest.h>

#include "tests/serve/faults/fault_load.h"
#include "tests/support/mpi.h"

namespace stoch::test {
namespace {

const std::string kConfig = std::string(STOCH_SOURCE_DIR) + "/tools/serve/haproxy.cfg";

std::string Replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

// HAProxy in front of two servers.
class Balancer {
 public:
  Balancer(uint16_t first, uint16_t second) {
    std::string text = ReadFile(kConfig);
    text = Replaced(text, "bind :8000", "bind unix@" + path());
    text = Replaced(text, "10.0.0.1:8080", "127.0.0.1:" + std::to_string(first));
    text = Replaced(text, "10.0.0.2:8080", "127.0.0.1:" + std::to_string(second));
    WriteFile(folder_ / "haproxy.cfg", text);
    child_ = fork();
    if (child_ == 0) {
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
      execlp("haproxy", "haproxy", "-db", "-f", (folder_ / "haproxy.cfg").c_str(), nullptr);
      _exit(127);
    }
  }
  ~Balancer() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  Reply Call(const std::string& method, const std::string& target, const std::string& body = "") const {
    return HttpClient(path()).Call(method, target, body);
  }
  // Until it passes requests on.
  bool WaitUntilReady() const {
    const auto deadline = Clock::now() + seconds(20);
    while (Clock::now() < deadline) {
      try {
        if (Call("GET", "/health").status == 200) return true;
      } catch (const std::runtime_error&) {  // it does not listen yet
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    return false;
  }

 private:
  std::string path() const { return folder_ / "socket"; }

  TempDir folder_;
  pid_t child_ = 0;
};

class HaproxyTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PATH", (std::string(std::getenv("PATH")) + ":/usr/sbin:/sbin").c_str(), 1);
    if (std::system("command -v haproxy >/dev/null 2>&1") == 0) return;
    if (IsRequired("STOCH_REQUIRE_HAPROXY")) FAIL() << "STOCH_REQUIRE_HAPROXY=1, but haproxy is not there";
    GTEST_SKIP() << "haproxy is not there";
  }
};

TEST_F(HaproxyTest, TheConfigurationIsOne) {
  EXPECT_EQ(std::system(("haproxy -c -q -f '" + kConfig + "'").c_str()), 0);
}

TEST_F(HaproxyTest, AReplicaIsKilledAndNoClientNotices) {
  Serving kept, lost;
  ASSERT_TRUE(kept.Logs("weights_digest") && lost.Logs("weights_digest")) << kept.Log() << lost.Log();
  const Balancer balancer(kept.port(), lost.port());
  ASSERT_TRUE(balancer.WaitUntilReady());
  constexpr int kPrompts = 6, kClients = 16, kRounds = 6;
  const auto request = [](int i) {
    return Json{
        {"prompt", "Once upon a time " + std::to_string(i)}, {"max_tokens", 24 + i}, {"seed", i}, {"ignore_eos", true}}
        .dump();
  };
  const auto answer = [](const Reply& reply) {
    const Json json = reply.Json();
    return reply.status == 200 ? json["choices"][0]["text"].dump() + json["system_fingerprint"].dump() : reply.body;
  };
  std::vector<std::string> alone;
  for (int i = 0; i < kPrompts; ++i) alone.push_back(answer(Call(kept.port(), "POST", "/v1/completions", request(i))));
  EXPECT_EQ(answer(Call(lost.port(), "POST", "/v1/completions", request(0))), alone[0]) << "replicas differ";
  std::mutex mutex;
  std::vector<std::string> wrong;
  std::atomic<int> answers = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      for (int round = 0; round < kRounds; ++round) {
        const int i = (c + round) % kPrompts;
        std::string got;
        try {
          got = answer(balancer.Call("POST", "/v1/completions", request(i)));
        } catch (const std::exception& error) {
          got = error.what();
        }
        ++answers;
        const std::lock_guard lock(mutex);
        if (got != alone[static_cast<size_t>(i)]) wrong.push_back(got);
      }
    });
  }
  const double before = Metric(lost.port(), kTokens);
  const auto deadline = Clock::now() + seconds(30);
  while (answers < kClients && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_GT(Metric(lost.port(), kTokens), before) << "it had no part of the load";
  EXPECT_LT(answers, kClients * kRounds);
  lost.Signal(SIGKILL);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answers, kClients * kRounds);
  EXPECT_TRUE(wrong.empty()) << wrong.size() << " of " << answers << ", the first: " << wrong.front();
}

}  // namespace
}  // namespace stoch::test
