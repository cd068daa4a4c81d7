// SPDX-License-Identifier: Apache-2.0
// Memory that runs out at any allocation of any thread of the gateway: a request may pay, the server goes on.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "tests/serve/faults/scarcity.h"
#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"
#include "tests/support/chat_python.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{20'000};  // for what a client waits for
constexpr int64_t kEach = 100;             // allocations of which each one fails; then some of them
constexpr int64_t kStep = 11;
constexpr const char* kChats = "/v1/chat/completions";

std::string Body(bool stream) {
  return Json({{"prompt", "Once upon a time"}, {"max_tokens", 6}, {"seed", 3}, {"logprobs", 2}, {"stream", stream}})
      .dump();
}

std::string Chat() {
  const Json part = {{"type", "text"}, {"text", "Once upon a time"}};
  const Json message = {{"role", "user"}, {"content", Json::array({part, part})}};
  return Json({{"messages", Json::array({message, message})}, {"max_tokens", 4}, {"seed", 3}}).dump();
}

// The thread: what it is called, and how long it takes until all it does has been done.
struct Role {
  const char* thread;
  milliseconds pause;
};

class GatewayScarce : public testing::TestWithParam<Role> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers bring their own operator new";
#endif
    if (std::string(GetParam().thread) == "render") STOCH_REQUIRE_JINJA();
    const std::string page = (folder_.path() / "page").string();
    WriteFile(page, std::string(sizeof(Scarcity), '\0'));
    const int fd = open(page.c_str(), O_RDWR);
    void* const mapped = mmap(nullptr, sizeof(Scarcity), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    ASSERT_NE(mapped, MAP_FAILED);
    scarcity_ = static_cast<Scarcity*>(mapped);
    const std::vector<std::string> chats = {"--chat-template", "chatml"};
    server_ = std::make_unique<Serving>(HasJinja() ? chats : std::vector<std::string>{}, kDemo, false, 0, [page] {
      setenv(kScarcityVariable, page.c_str(), 1);
      setenv("LD_PRELOAD", STOCH_SCARCE_MEMORY, 1);
    });
    ASSERT_TRUE(server_->Logs("ready"));
    scarcity_->pid = server_->pid();
    scarcity_->fails = 1;
    std::strncpy(scarcity_->thread, GetParam().thread, sizeof(scarcity_->thread) - 1);
    alone_ = Complete()["choices"];
    if (HasJinja()) chat_alone_ = Call(server_->port(), "POST", kChats, Chat()).Json()["choices"];
  }
  void TearDown() override {
    server_.reset();
    if (scarcity_ != nullptr) munmap(scarcity_, sizeof(Scarcity));
  }

  Json Complete() const { return Call(server_->port(), "POST", "/v1/completions", Body(false)).Json(); }
  // What clients do, each on a connection of its own; some of it may fail, none of it may hang.
  void Use() const {
    const auto one = [&](const char* method, const char* path, const std::string& body) {
      const auto start = Clock::now();
      try {
        const Reply reply = Call(server_->port(), method, path, body);
        // Who gets an answer gets the right one, or the end of it.
        if (reply.status == 200 && body == Body(false)) {
          EXPECT_EQ(reply.Json()["choices"], alone_);
        } else if (reply.status == 200 && body == Chat()) {
          EXPECT_EQ(reply.Json()["choices"], chat_alone_);
        }
      } catch (const std::exception&) {  // cut off
      }
      EXPECT_LT(Clock::now() - start, kPatience) << path << ", allocation " << scarcity_->fail_at;
    };
    one("POST", "/v1/completions", Body(false));
    one("POST", "/v1/completions", Body(true));
    if (HasJinja()) one("POST", kChats, Chat());
    one("GET", "/metrics", "");
    one("GET", "/health", "");
    std::this_thread::sleep_for(GetParam().pause);
  }
  // The server answers as if nothing had been.
  void ExpectWell(const std::string& where) {
    const auto deadline = Clock::now() + kPatience;
    Json choices;
    int health = 0;
    while (Clock::now() < deadline) {
      try {
        health = Call(server_->port(), "GET", "/health").status;
        if (health == 200) choices = Complete()["choices"];
        if (choices == alone_) return;
      } catch (const std::exception&) {
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    FAIL() << where << ": /health " << health << ", " << choices << server_->Log();
  }

  // Lets each of the first `each` allocations fail, then some of the others, with those that follow up to `fails` of them.
  void FailEach(int64_t fails, int64_t each) {
    scarcity_->fails = fails;
    int64_t failed = 0, at = 1;
    for (;; at += at < each ? 1 : kStep) {
      scarcity_->count = 0;
      scarcity_->fail_at = at;
      Use();
      scarcity_->fail_at = 0;
      ExpectWell("allocation " + std::to_string(at));
      if (HasFailure()) break;
      ASSERT_FALSE(server_->Wait(milliseconds(0)).has_value());
      if (scarcity_->count < at) break;  // all of it has succeeded
      ++failed;
    }
    EXPECT_GT(failed, 0) << "no such thread";
    std::cout << GetParam().thread << ": " << failed << " allocations failed, up to number " << at << std::endl;
  }

  TempDir folder_;
  Scarcity* scarcity_ = nullptr;
  std::unique_ptr<Serving> server_;
  Json alone_, chat_alone_;
};

TEST_P(GatewayScarce, AnyAllocationMayFail) { FailEach(1, kEach); }

// The log has the name that its thread began with, as main has.
std::string NameOf(const testing::TestParamInfo<Role>& role) {
  std::string name = role.param.thread;
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Threads, GatewayScarce,
                         testing::Values(Role{"http-io", milliseconds(0)}, Role{"http-api", milliseconds(0)},
                                         Role{"render", milliseconds(0)}, Role{"pool", milliseconds(0)},
                                         Role{"stoch", milliseconds(1200)}),
                         NameOf);

// The next allocations fail, too: those of destructors, of the answer, of the log.
class GatewayWithoutMemory : public GatewayScarce {};
TEST_P(GatewayWithoutMemory, GoesOn) { FailEach(20, 0); }
INSTANTIATE_TEST_SUITE_P(Threads, GatewayWithoutMemory,
                         testing::Values(Role{"http-io", milliseconds(0)}, Role{"http-api", milliseconds(0)},
                                         Role{"render", milliseconds(0)}),
                         NameOf);

}  // namespace
}  // namespace stoch::test
