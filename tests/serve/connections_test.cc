// SPDX-License-Identifier: Apache-2.0
// Connections under load: who is answered while others wait, who has left, who is one too many.

#include <atomic>
#include <condition_variable>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Letters for which a text of question marks takes as long as the test wants.
class SlowTokenizer : public LettersTokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    if (text.starts_with("??")) {
      std::unique_lock lock(mutex_);
      ++waiting;
      released_.wait(lock, [this] { return free_; });
    }
    return LettersTokenizer::Encode(text, options);
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    released_.notify_all();
  }
  mutable std::atomic<int> waiting = 0;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable released_;
  bool free_ = false;
};

class Connections : public ServerFixture {
 protected:
  static constexpr int64_t kLongContext = 4096;

  Connections() : ServerFixture(kLongContext) {}
  void SetUp() override { server_options_.http.api_threads = 2; }

  static std::string PostText(const std::string& path, const std::string& body, const std::string& version = "1.1") {
    return "POST " + path + " HTTP/" + version + "\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  // Four sequences, which is all that run at once.
  static std::string LongBody(bool stream, int max_tokens = 4000) {
    return Json({{"prompt", {1, 5, 6}}, {"max_tokens", max_tokens}, {"n", 4}, {"ignore_eos", true}, {"stream", stream}})
        .dump();
  }
  // The shortest of a few: what a busy machine does in between is not the server's.
  milliseconds Fastest(const std::string& path) const {
    auto fastest = Clock::duration::max();
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      EXPECT_EQ(Call(port(), "GET", path).status, 200);
      fastest = std::min(fastest, Clock::now() - start);
    }
    return std::chrono::duration_cast<milliseconds>(fastest);
  }
};

TEST_F(Connections, HealthAndStreamsDoNotWaitForTokenizers) {
  SlowTokenizer slow;
  struct AtEnd {  // also where an assertion ends the test
    ~AtEnd() {
      tokenizer.Release();
      server.reset();
    }
    SlowTokenizer& tokenizer;
    std::unique_ptr<serve::Server>& server;
  } const at_end{slow, server_};
  StartServer(slow);
  HttpClient stream(port());
  stream.SendRaw(PostText("/v1/completions", LongBody(true, 2000)));
  stream.ReadUntil("data: ");
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->SendRaw(PostText("/tokenize", R"({"prompt": "??"})"));
  }
  ASSERT_TRUE(Eventually([&] { return slow.waiting == 1; }));
  EXPECT_LT(Fastest("/health"), milliseconds(100));
  EXPECT_LT(Fastest("/metrics"), milliseconds(100));
  // Who is being answered already goes on being answered.
  EXPECT_NE(stream.ReadUntil("[DONE]").find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_EQ(slow.waiting, 1);  // one of two threads stays free for that
  slow.Release();
  for (const auto& client : clients) EXPECT_EQ(client->Receive().Json()["count"], 3);
}

TEST_F(Connections, AStreamMayBeginWithMoreThanMayWait) {
  server_options_.http.max_backlog_bytes = 64 << 10;
  StartServer();
  const Json body = {{"prompt", std::vector<int>(600, 7)}, {"max_tokens", 2}, {"logprobs", 90}, {"echo", true}};
  const Json choices = Collect(body);
  EXPECT_EQ(choices[0]["logprobs"]["tokens"].size(), 602u);
  EXPECT_GT(choices.dump().size(), 1u << 20);
  EXPECT_EQ(choices, Complete(body)["choices"]);
  EXPECT_FALSE(Logged("disconnected"));
}

TEST_F(Connections, ClientsThatLeaveAreNoticedAfterBytesThatNobodyReads) {
  StartServer();
  HttpClient client(port());
  client.SendRaw(PostText("/v1/completions", LongBody(false)) + std::string(80 << 10, 'x'));
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 4; }));
  client.Close();
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
  EXPECT_EQ(Metric("stoch_requests_finished_total{reason=\"cancelled\"}"), 4);
  // So many that the end would not be seen after them.
  HttpClient talkative(port());
  talkative.SendRaw(PostText("/v1/completions", LongBody(false)));
  // A connection that is cut off before its request has begun leaves nothing to cancel.
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 4; }));
  try {
    talkative.SendRaw(std::string(8 << 20, 'x'));
  } catch (const std::exception&) {  // cut off in the middle of it
  }
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_finished_total{reason=\"cancelled\"}") == 8; }));
}

TEST_F(Connections, ClientsMayStopSendingOnceTheyHaveAsked) {
  StartServer();
  for (const std::string version : {"1.0", "1.1"}) {
    for (const bool stream : {false, true}) {
      HttpClient client(port());
      client.SendRaw(PostText("/v1/completions", LongBody(stream, 300), version));
      client.EndSending();
      const std::string answer = client.ReadToEnd();
      EXPECT_NE(answer.find(" 200 OK"), std::string::npos) << answer;
      EXPECT_NE(answer.find("\"finish_reason\":\"length\""), std::string::npos) << version << stream;
      EXPECT_EQ(answer.find("[DONE]") != std::string::npos, stream);
    }
  }
  // Requests in a row, and the end.
  HttpClient row(port());
  row.SendRaw(PostText("/v1/completions", LongBody(false, 50)) + "GET /version HTTP/1.1\r\nHost: a\r\n\r\n");
  row.EndSending();
  const std::string answers = row.ReadToEnd();
  EXPECT_NE(answers.find("\"choices\""), std::string::npos);
  EXPECT_NE(answers.find("\"commit\""), std::string::npos);
  EXPECT_EQ(Metric("stoch_requests_finished_total{reason=\"cancelled\"}"), 0);
}

TEST_F(Connections, OneTooManyIsToldSo) {
  server_options_.http.max_connections = 3;
  StartServer();
  std::vector<std::unique_ptr<HttpClient>> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(std::make_unique<HttpClient>(port()));
    busy.back()->SendRaw(PostText("/v1/completions", LongBody(true)));
    busy.back()->ReadUntil("HTTP/1.1 200");
  }
  const Reply refused = Post("/v1/completions", {{"prompt", {5}}, {"max_tokens", 1}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(Call(port(), "GET", "/health").status, 200);
  EXPECT_EQ(Metric("stoch_http_connections_refused_total"), 3);
  EXPECT_EQ(CountLogLines("connections_refused"), 1);
  busy.clear();
  EXPECT_TRUE(Eventually([this] { return Post("/tokenize", {{"prompt", "a"}}).status == 200; }));
}

// Connections that ask nothing, or not to the end, keep nobody out: who has waited longest goes.
TEST_F(Connections, TheOldestIdleOneMakesRoom) {
  server_options_.http.max_connections = 3;
  StartServer();
  HttpClient stream(port());
  stream.SendRaw(PostText("/v1/completions", LongBody(true)));
  stream.ReadUntil("data: ");
  HttpClient half(port());
  half.SendRaw("GET /version HT");
  HttpClient idle(port());
  EXPECT_EQ(idle.Call("GET", "/version").status, 200);
  HttpClient first(port());
  EXPECT_EQ(first.Call("GET", "/version").status, 200);
  EXPECT_TRUE(half.AtEnd());
  std::this_thread::sleep_for(milliseconds(200));       // a connection waits once the server knows that it sent all
  EXPECT_EQ(idle.Call("GET", "/version").status, 200);  // and waits from now on
  HttpClient second(port());
  EXPECT_EQ(second.Call("GET", "/version").status, 200);
  EXPECT_TRUE(first.AtEnd());
  EXPECT_EQ(idle.Call("GET", "/version").status, 200);
  stream.ReadUntil("data: ");
  EXPECT_EQ(CountLogLines("connections_full"), 1);
  EXPECT_FALSE(Logged("connections_refused"));
}

TEST_F(Connections, TheFirstByteComesSoon) {
  server_options_.http.first_byte_timeout = milliseconds(300);
  StartServer();
  HttpClient used(port());
  EXPECT_EQ(used.Call("GET", "/version").status, 200);
  const auto start = Clock::now();
  HttpClient silent(port());
  EXPECT_TRUE(silent.AtEnd());
  EXPECT_GE(Clock::now() - start, milliseconds(290));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(used.Call("GET", "/version").status, 200);  // between requests there is more time
}

// The memory of all bodies together is bounded, and free again when they are read or their clients are gone.
TEST_F(Connections, BodiesHaveABudget) {
  server_options_.http.max_bodies_bytes = 6 << 20;
  StartServer();
  const std::string body = R"({"prompt":"a","other":")" + std::string(4 << 20, 'x') + "\"}";
  const std::string text = PostText("/tokenize", body);
  HttpClient half(port());
  half.SendRaw(text.substr(0, text.size() - 10));
  // Only what has come counts, so it may take a moment. Who announces as much then is refused unread.
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n";
  ASSERT_TRUE(Eventually([&] {
    HttpClient announced(port());
    announced.SendRaw(head);
    announced.EndSending();
    return announced.ReadToEnd().find(" 503 ") != std::string::npos;
  }));
  Reply refused;
  ASSERT_TRUE(Eventually([&] {
    try {
      refused = Call(port(), "POST", "/tokenize", body);
    } catch (const std::exception&) {  // refused in the middle of the body
      refused.status = 503;
      refused.headers["retry-after"] = "1";
    }
    return refused.status == 503;
  }));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Post("/tokenize", {{"prompt", "a"}}).status, 200);
  HttpClient announced(port());
  announced.SendRaw(head);
  EXPECT_EQ(announced.Receive().status, 503);
  EXPECT_TRUE(announced.AtEnd());
  half.SendRaw(text.substr(text.size() - 10));
  EXPECT_EQ(half.Receive().status, 200);
  EXPECT_EQ(Call(port(), "POST", "/tokenize", body).status, 200);
  {
    HttpClient gone(port());
    gone.SendRaw(text.substr(0, text.size() - 10));
  }
  EXPECT_TRUE(Eventually([&] {
    HttpClient again(port());
    again.SendRaw(text);
    try {
      return again.Receive().status == 200;
    } catch (const std::exception&) {
      return false;
    }
  }));
}

TEST_F(Connections, StreamsBeginBeforeTheirTurn) {
  server_options_.http.ping_interval = milliseconds(50);
  StartServer();
  HttpClient running(port());
  running.SendRaw(PostText("/v1/completions", LongBody(false)));
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 4; }));
  HttpClient waiting(port());
  waiting.SendRaw(PostText("/v1/completions", LongBody(true, 3)));
  EXPECT_NE(waiting.ReadUntil(": ping\n\n").find("text/event-stream"), std::string::npos);
  EXPECT_EQ(Metric("stoch_requests_waiting"), 4);
  running.Close();
  const std::string rest = waiting.ReadUntil("[DONE]");
  EXPECT_NE(rest.find("\nid: cmpl-"), std::string::npos) << rest;
}

TEST_F(Connections, EventsAreNumbered) {
  StartServer();
  const std::string body =
      Json({{"prompt", {5, 6}}, {"max_tokens", 5}, {"ignore_eos", true}, {"stream", true}, {"seed", 1}}).dump();
  const Reply reply = Call(port(), "POST", "/v1/completions", body, {{"X-Request-Id", "me"}});
  const std::vector<std::string> events = reply.Events();
  const std::string id = reply.body.substr(0, reply.body.find(':', 4));  // "id: cmpl-..."
  EXPECT_EQ(id.size(), 4u + 5 + 32) << reply.body;
  EXPECT_EQ(reply.body.find(id + ":0\ndata: "), 0u) << reply.body;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_NE(reply.body.find(id + ":" + std::to_string(i) + "\ndata: " + events[i]), std::string::npos) << i;
  }
}

// A client may leave at the very moment its answer ends.
TEST_F(Connections, EveryRequestIsLoggedOnce) {
  StartServer();
  constexpr int kRounds = 60;
  for (int i = 0; i < kRounds; ++i) {
    HttpClient client(port());
    const std::string body =
        Json({{"prompt", {5, 6}}, {"max_tokens", 3}, {"ignore_eos", true}, {"stream", i % 2 == 0}}).dump();
    client.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r" + std::to_string(i) +
                   "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    if (i % 3 != 0) client.ReadUntil(i % 2 == 0 ? "data: " : "\r\n");
    client.Close();
  }
  EXPECT_TRUE(server_->Drain(milliseconds(5000)));
  for (int i = 0; i < kRounds; ++i) {
    const auto lines = [&] { return CountLogLines("completion id=r" + std::to_string(i) + " "); };
    // One that left before anybody looked at its request is not logged at all; the log is written by a thread of its own.
    if (i % 3 != 0) {
      EXPECT_TRUE(Eventually([&] { return lines() > 0; })) << i;
    }
    EXPECT_LE(lines(), 1) << i;
  }
}

}  // namespace
}  // namespace stoch::test
