// SPDX-License-Identifier: Apache-2.0
// Workers that are killed, stopped and crashed while clients read: every answer is the one given alone.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/serve/faults/fault_load.h"
#include "tests/support/deep_model.h"

namespace stoch::test {
namespace {

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

// A model that a smaller one guesses well for, in a worker that is lost with both: answers are those without guesses.
TEST_F(WorkerFaults, ADraftModelChangesNoAnswer) {
  const TempDir folder;
  WriteDeepModel(kDemo, folder / "deep", 25);
  std::vector<Json> alone;
  {
    Serving plain({}, (folder / "deep").string());
    ASSERT_TRUE(plain.Logs("ready")) << plain.Log();
    alone = AskedAlone(plain.port());
  }
  Serving server({"--speculate", kDemo}, (folder / "deep").string());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const uint16_t port = server.port();
  UnderLoad(port, alone, NumberFromEnvironment("STOCH_FAULT_CLIENTS", 16), [&] {
    for (int moment = 0; moment < 2; ++moment) {
      const Health before = WaitUntilReady(port);
      const double tokens = Metric(port, kTokens) + 200;
      const auto slowest = Clock::now() + seconds(60);
      while (Metric(port, kTokens) < tokens && Clock::now() < slowest) std::this_thread::sleep_for(milliseconds(10));
      const auto pid = before.workers[0]["pid"].get<pid_t>();
      kill(pid, SIGKILL);
      WaitForEnd(pid);
      while (WaitUntilReady(port).workers[0]["pid"] == pid && Clock::now() < slowest) {
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
    WaitUntilReady(port);
  });
  // One sequence at a time, until guesses paid once.
  const auto accepted = [&] { return Metric(port, "stoch_draft_tokens_accepted_total"); };
  const auto deadline = Clock::now() + seconds(60);
  do {
    EXPECT_EQ(AskedAlone(port), alone);
  } while (accepted() == 0 && Clock::now() < deadline);
  EXPECT_GE(Metric(port, "stoch_worker_restarts_total"), 2);
  EXPECT_EQ(Metric(port, "stoch_sequences_refused_total"), 0);
  if (accepted() == 0) GTEST_SKIP() << "guesses did not pay within a minute: nothing was told about them";
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
