// SPDX-License-Identifier: Apache-2.0
// Health that tells the truth: an engine whose thread hangs or fails.

#include <atomic>

#include "kernels/base/error.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

using std::chrono::milliseconds;

// Letters whose decoding, which the engine's thread does token by token, hangs or fails when told.
// What passes do.
struct Obstinacy {
  std::atomic<bool> hang = false;
  std::atomic<bool> fail = false;
};

class Health : public ServerFixture {
 protected:
  static constexpr int64_t kLongContext = 4096;

  Health() : ServerFixture(kLongContext) {}

  void SetUp() override {
    runner_options_.stalled_after = milliseconds(200);
    Listen();
    before_attention_ = [this](int64_t) {
      while (obstinate_.hang) std::this_thread::sleep_for(milliseconds(1));
      if (obstinate_.fail) throw DeviceError("the device fell off the bus");
    };
    engine_ = OpenEngine();
    Attach(&tokenizer_);
  }
  void TearDown() override {
    obstinate_.hang = false;
    server_.reset();  // before what its engine's passes look at
  }

  std::string HealthNow() const {
    const Reply reply = Call(port(), "GET", "/health");
    std::string state = reply.Json()["status"];
    EXPECT_EQ(reply.status, state == "ok" ? 200 : 503);
    return state;
  }
  // A stream in flight.
  void StartStream(HttpClient& client) {
    const std::string body =
        Json({{"prompt", "a"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", true}}).dump();
    client.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                   std::to_string(body.size()) + "\r\n\r\n" + body);
    client.ReadUntil("data: ");
  }

  Obstinacy obstinate_;
};

TEST_F(Health, AnIdleEngineAndABusyOneAreWell) {
  // Far beyond the limit.
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(HealthNow(), "ok");
    std::this_thread::sleep_for(milliseconds(10));
  }
  HttpClient client(port());
  StartStream(client);
  EXPECT_EQ(HealthNow(), "ok");
}

TEST_F(Health, APassThatTakesTooLongIsAStall) {
  HttpClient client(port());
  StartStream(client);
  obstinate_.hang = true;
  EXPECT_TRUE(Eventually([this] { return HealthNow() == "stalled"; }));
  EXPECT_FALSE(server_->stuck());  // nobody asked it to end
  obstinate_.hang = false;
  EXPECT_TRUE(Eventually([this] { return HealthNow() == "ok"; }));
  client.ReadUntil("data: ");
}

TEST_F(Health, AStalledEngineDoesNotHoldTheDrainUp) {
  HttpClient client(port());
  StartStream(client);
  obstinate_.hang = true;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(server_->Drain(milliseconds(100)));
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(elapsed, milliseconds(100));
  EXPECT_LT(elapsed, milliseconds(5000));
  EXPECT_TRUE(server_->stuck());
  obstinate_.hang = false;
  EXPECT_TRUE(Eventually([this] { return !server_->stuck(); }));
}

TEST_F(Health, AFailedEngineFailsEveryRequestAndSaysSo) {
  HttpClient client(port());
  StartStream(client);
  EXPECT_EQ(server_->failure(), nullptr);
  obstinate_.fail = true;
  EXPECT_NE(client.ReadUntil("[DONE]").find("the engine failed"), std::string::npos);
  EXPECT_TRUE(Eventually([this] { return HealthNow() == "failed"; }));
  ASSERT_TRUE(Eventually([this] { return server_->failure() != nullptr; }));
  EXPECT_THROW(std::rethrow_exception(server_->failure()), DeviceError);
  const Reply refused = Post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.Json()["error"]["message"].get<std::string>().find("failed"), std::string::npos) << refused.body;
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
  EXPECT_TRUE(server_->Drain(milliseconds(1000)));
}

// Whoever runs, waits, or is just being started when the engine fails: all are told before anybody hears of the
// failure, who may then end the process.
TEST_F(Health, AFailureIsShownOnceEverybodyHasBeenTold) {
  HttpClient running(port());
  StartStream(running);
  std::vector<std::unique_ptr<HttpClient>> others;
  for (int i = 0; i < 6; ++i) {
    others.push_back(std::make_unique<HttpClient>(port()));
    const std::string body = Json({{"prompt", "a"}, {"max_tokens", 4000}, {"ignore_eos", true}}).dump();
    others.back()->SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_waiting") == 3; }));
  obstinate_.fail = true;
  ASSERT_TRUE(Eventually([this] { return server_->failure() != nullptr; }));
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_finished_total{reason=\"error\"}") == 7; }));
  EXPECT_TRUE(server_->Drain(milliseconds(5000)));
  for (const auto& other : others) EXPECT_EQ(other->Receive().status, 503);
}

TEST_F(Health, AJobThatFailsTheEngineWhileItStartsIsToldToo) {
  obstinate_.fail = true;
  const Reply reply = Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 4}});
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("the engine failed"), std::string::npos) << reply.body;
  ASSERT_TRUE(Eventually([this] { return server_->failure() != nullptr; }));
  EXPECT_TRUE(server_->Drain(milliseconds(5000)));
}

}  // namespace
}  // namespace stoch::test
