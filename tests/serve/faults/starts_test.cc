// SPDX-License-Identifier: Apache-2.0
// Signals to process 1 of a container.

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>

#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

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
  client.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) +
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
