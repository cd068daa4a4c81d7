// SPDX-License-Identifier: Apache-2.0
// Starts that fail for a while, a port that is taken for a while, workers that show no life, and signals to process 1.

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

Json WorkerOf(uint16_t port) { return Call(port, "GET", "/health").Json()["workers"][0]; }

template <class Condition>
bool Eventually(seconds limit, const Condition& condition) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

TEST(Starts, AFileThatIsAwayForAMomentEndsNothing) {
  const TempDir root;
  const std::string folder = (root / "model").string();
  std::filesystem::copy(kDemo, folder, std::filesystem::copy_options::recursive);
  Serving server({}, folder);
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  std::filesystem::rename(folder + "/config.json", folder + "/away");
  kill(WorkerOf(server.port())["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(server.Wait(seconds(8)), std::nullopt) << server.Log();  // many starts fail meanwhile
  EXPECT_EQ(Call(server.port(), "GET", "/health").status, 503);
  std::filesystem::rename(folder + "/away", folder + "/config.json");
  EXPECT_TRUE(Eventually(seconds(20), [&] { return Call(server.port(), "GET", "/health").status == 200; }))
      << server.Log();
  const Reply reply = Call(server.port(), "POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 2})");
  EXPECT_EQ(reply.status, 200) << reply.body;
}

TEST(Starts, FailingForTooLongEndsAServerThatWasReadyAsAFailure) {
  const TempDir root;
  const std::string folder = (root / "model").string();
  std::filesystem::copy(kDemo, folder, std::filesystem::copy_options::recursive);
  Serving server({"--give-up-after", "2"}, folder);
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  std::filesystem::rename(folder + "/config.json", folder + "/away");
  kill(WorkerOf(server.port())["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(server.Wait(seconds(30)), 3) << server.Log();  // not 2, which no service manager tries again
  EXPECT_NE(server.Log().find("config.json"), std::string::npos) << server.Log();
}

TEST(Starts, AReadyWorkerMayBeLostAnyNumberOfTimes) {
  Serving server({"--give-up-after", "1"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  for (int loss = 0; loss < 8; ++loss) {
    ASSERT_TRUE(Eventually(seconds(30), [&] { return WorkerOf(server.port())["state"] == "ready"; })) << server.Log();
    const auto pid = WorkerOf(server.port())["pid"].get<pid_t>();
    kill(pid, SIGKILL);
    ASSERT_TRUE(Eventually(seconds(30), [&] { return WorkerOf(server.port()).value("pid", 0) != pid; }));
  }
  EXPECT_TRUE(Eventually(seconds(30), [&] { return Call(server.port(), "GET", "/health").status == 200; }))
      << server.Log();
}

// Somebody who kills it, the kernel for want of memory: the next one may live.
TEST(Starts, AFirstWorkerThatIsKilledWhileItLoadsIsReplaced) {
  bool was_loading = false;
  for (int attempt = 0; attempt < 20 && !was_loading; ++attempt) {
    Serving server;
    const std::string started = "worker_started pid=";
    ASSERT_TRUE(Eventually(seconds(20), [&] { return server.Log().find(started) != std::string::npos; }));
    const std::string log = server.Log();
    kill(std::stoi(log.substr(log.find(started) + started.size())), SIGKILL);
    ASSERT_TRUE(Eventually(seconds(20), [&] { return server.Log().find("worker_lost") != std::string::npos; }));
    const std::string after = server.Log();
    was_loading = after.substr(0, after.find("worker_lost")).find("worker_ready") == std::string::npos;
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    EXPECT_EQ(Call(server.port(), "GET", "/health").status, 200) << server.Log();
  }
  EXPECT_TRUE(was_loading);
}

TEST(Starts, APortThatIsFreeSoonIsWaitedFor) {
  auto first = std::make_unique<Serving>();
  ASSERT_TRUE(first->Logs("ready")) << first->Log();
  Serving second({"--port", std::to_string(first->port())});
  std::this_thread::sleep_for(milliseconds(1500));
  first.reset();
  ASSERT_TRUE(second.Logs("ready")) << second.Log();
  EXPECT_EQ(Call(second.port(), "GET", "/health").status, 200);
}

TEST(Starts, AWorkerThatIsStoppedIsSilentThenReplaced) {
  Serving server({"--silence-limit", "8"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto pid = WorkerOf(server.port())["pid"].get<pid_t>();
  const auto stopped = Clock::now();
  kill(pid, SIGSTOP);
  ASSERT_TRUE(Eventually(seconds(20), [&] { return WorkerOf(server.port())["state"] == "silent"; })) << server.Log();
  EXPECT_GE(Clock::now() - stopped, seconds(4));
  const Reply health = Call(server.port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.Json()["status"], "silent");
  ASSERT_TRUE(Eventually(seconds(20), [&] { return WorkerOf(server.port()).value("pid", 0) != pid; })) << server.Log();
  EXPECT_LT(Clock::now() - stopped, seconds(20));
  EXPECT_TRUE(Eventually(seconds(20), [&] { return Call(server.port(), "GET", "/health").status == 200; }));
  EXPECT_NE(server.Log().find("how=stopped"), std::string::npos) << server.Log();
}

// A gigabyte of weights takes longer than the look at it, on any machine.
TEST(Starts, AWorkerThatStopsWhileItLoadsIsSilentThenReplaced) {
  Serving server({"--silence-limit", "8"}, "random:tinyllama-1.1b");
  ASSERT_TRUE(Eventually(seconds(60), [&] { return server.Log().find(" ready ") != std::string::npos; }));
  kill(WorkerOf(server.port())["pid"].get<pid_t>(), SIGKILL);
  ASSERT_TRUE(Eventually(seconds(20), [&] { return WorkerOf(server.port())["state"] == "loading"; })) << server.Log();
  std::this_thread::sleep_for(milliseconds(300));  // it has shown life
  const auto pid = WorkerOf(server.port())["pid"].get<pid_t>();
  kill(pid, SIGSTOP);
  ASSERT_TRUE(Eventually(seconds(20), [&] { return WorkerOf(server.port())["state"] == "silent"; })) << server.Log();
  EXPECT_EQ(Call(server.port(), "GET", "/health").Json()["status"], "silent");
  EXPECT_TRUE(Eventually(seconds(20), [&] { return WorkerOf(server.port()).value("pid", 0) != pid; })) << server.Log();
  EXPECT_NE(server.Log().find("how=stopped"), std::string::npos) << server.Log();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(20)), 0) << server.Log();
}

TEST(Starts, AWorkerThatGoesOnIsBack) {
  Serving server;
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto pid = WorkerOf(server.port())["pid"].get<pid_t>();
  kill(pid, SIGSTOP);
  ASSERT_TRUE(Eventually(seconds(12), [&] { return WorkerOf(server.port())["state"] == "silent"; })) << server.Log();
  kill(pid, SIGCONT);
  EXPECT_TRUE(Eventually(seconds(5), [&] { return Call(server.port(), "GET", "/health").status == 200; }));
  EXPECT_EQ(WorkerOf(server.port())["pid"], pid);
}

// Time in which the server itself did not run is not the worker's.
TEST(Starts, AServerThatWasStoppedBlamesNoWorker) {
  Serving server({"--silence-limit", "2"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto pid = WorkerOf(server.port())["pid"].get<pid_t>();
  kill(pid, SIGSTOP);
  server.Signal(SIGSTOP);
  std::this_thread::sleep_for(seconds(4));
  server.Signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(200));
  kill(pid, SIGCONT);
  std::this_thread::sleep_for(seconds(1));
  EXPECT_EQ(WorkerOf(server.port())["pid"], pid) << server.Log();
  EXPECT_EQ(Call(server.port(), "GET", "/health").status, 200);
}

// The first child of a process, 0 where there is none yet.
pid_t ChildOf(pid_t pid) {
  std::ifstream children("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  pid_t child = 0;
  children >> child;
  return child;
}

// As process 1 of a container, which signals do not end by themselves.
TEST(Starts, ASecondSigtermEndsProcessOneAtOnce) {
  constexpr int kNoNamespace = 99;
  const auto as_process_1 = [] {
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(kNoNamespace);
    const pid_t inner = fork();
    if (inner == 0) return;
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 100);
  };
  Serving server({"--shutdown-timeout", "600"}, kDemo, false, 0, as_process_1);
  const bool is_ready = server.Logs("ready");
  if (!is_ready && server.Wait(seconds(1)) == kNoNamespace) GTEST_SKIP() << "no process may be process 1 here";
  ASSERT_TRUE(is_ready) << server.Log();
  const pid_t inner = ChildOf(server.pid());
  ASSERT_GT(inner, 0);
  const std::string body = Json({{"prompt", "a"}, {"max_tokens", 500}, {"ignore_eos", true}, {"n", 16}}).dump();
  HttpClient client(server.port());
  client.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
                 "\r\n\r\n" + body);
  std::this_thread::sleep_for(milliseconds(300));
  kill(inner, SIGTERM);
  ASSERT_TRUE(server.Logs("draining")) << server.Log();
  kill(inner, SIGTERM);
  const std::optional<int> code = server.Wait(seconds(5));
  if (!code) kill(inner, SIGKILL);
  EXPECT_EQ(code, 128 + SIGTERM) << server.Log();
}

}  // namespace
}  // namespace stoch::test
