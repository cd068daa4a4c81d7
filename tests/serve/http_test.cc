// SPDX-License-Identifier: Apache-2.0
// HTTP itself: framing, limits, clients that leave, full queues, the end.

#include "kernels/base/error.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

using std::chrono::milliseconds;

class Http : public ServerFixture {
 protected:
  static constexpr int64_t kLongContext = 4096;

  Http() : ServerFixture(kLongContext) {}

  // Four sequences, which is all that run at once. The default takes a second or so.
  static std::string LongBody(bool stream, int max_tokens = 4000) {
    return Json({{"prompt", {1, 5, 6}}, {"max_tokens", max_tokens}, {"n", 4}, {"ignore_eos", true}, {"stream", stream}})
        .dump();
  }
  static std::string PostText(const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }
};

TEST_F(Http, KeepsConnectionsAndTakesRequestsInARow) {
  StartServer();
  HttpClient client(port());
  EXPECT_EQ(client.Call("GET", "/version").status, 200);
  EXPECT_EQ(client.Call("POST", "/v1/completions", "{").status, 400);
  // Three at once, one of them in two parts.
  const std::string body = R"({"prompt": "a", "max_tokens": 2, "ignore_eos": true})";
  client.SendRaw("GET /health HTTP/1.1\r\nHost: a\r\n\r\n" + PostText(body) + "GET /vers");
  EXPECT_EQ(client.Receive().body, R"({"status":"ok"})");
  EXPECT_EQ(client.Receive().Json()["object"], "text_completion");
  client.SendRaw("ion HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.Receive().Json().count("version"), 1u);
}

// A client that has its answer sends the next body at once: no read-ahead, however slow the thread is that answered.
TEST_F(Http, LargeBodiesFollowEachOther) {
  StartServer();
  HttpClient client(port());
  const std::string body = R"({"prompt":"a","other":")" + std::string(3'000'000, 'x') + "\"}";
  for (int i = 0; i < 150; ++i) ASSERT_EQ(client.Call("POST", "/tokenize", body).status, 200) << i;
}

TEST_F(Http, ServesOldClientsAndThoseThatAskFirst) {
  StartServer();
  HttpClient old(port());
  old.SendRaw("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Receive().status, 200);
  EXPECT_TRUE(old.AtEnd());
  HttpClient asking(port());
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  asking.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(asking.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  asking.SendRaw(body);
  EXPECT_EQ(asking.Receive().status, 200);
  HttpClient chunked(port());
  chunked.SendRaw("POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{\"promp\r\n");
  chunked.SendRaw("8\r\nt\":\"ab\"}\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Receive().Json()["count"], 3);
}

TEST_F(Http, RefusesWhatIsNoHttpOrTooLong) {
  server_options_.http.max_body_bytes = 1000;
  server_options_.http.max_header_bytes = 2000;
  StartServer();
  const std::pair<std::string, int> cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/9.9\r\n\r\n", 400},
      {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400},
      {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(3000, 'a') + "\r\n\r\n", 431},
  };
  for (const auto& [text, status] : cases) {
    HttpClient client(port());
    client.SendRaw(text);
    const Reply reply = client.Receive();
    EXPECT_EQ(reply.status, status) << text;
    EXPECT_EQ(reply.Json()["error"]["code"], status);
    EXPECT_TRUE(client.AtEnd());
  }
}

// Each limit alone, so that none stands in for another.
TEST_F(Http, ClosesIdleConnections) {
  server_options_.http.idle_timeout = milliseconds(300);
  server_options_.http.request_timeout = std::chrono::seconds(60);
  StartServer();
  const auto start = std::chrono::steady_clock::now();
  HttpClient idle(port());
  HttpClient used(port());
  HttpClient busy(port());
  busy.SendRaw(PostText(LongBody(false, 1000)));  // longer than the limit, and not idle
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(used.Call("GET", "/version").status, 200);  // from now on it is idle
  EXPECT_TRUE(idle.AtEnd());
  const auto first = std::chrono::steady_clock::now() - start;
  EXPECT_GE(first, milliseconds(290));
  EXPECT_TRUE(used.AtEnd());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(490));
  EXPECT_EQ(busy.Receive().status, 200);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(300));
}

TEST_F(Http, RefusesRequestsThatDoNotArrive) {
  server_options_.http.idle_timeout = std::chrono::seconds(60);
  server_options_.http.request_timeout = milliseconds(200);
  StartServer();
  HttpClient slow(port());
  slow.SendRaw("POST /tokenize HTTP/1.1\r\nContent-Le");
  EXPECT_EQ(slow.Receive().status, 408);
  EXPECT_TRUE(slow.AtEnd());
}

TEST_F(Http, ClosesStreamsThatNobodyReads) {
  server_options_.http.max_backlog_bytes = 1 << 20;
  server_options_.api.max_answer_values = 10'000'000;
  StartServer();
  HttpClient reader(port());
  HttpClient sleeper(port());
  Json body = Json::parse(LongBody(true));
  body["logprobs"] = 90;  // some kilobytes per token
  sleeper.SendRaw(PostText(body.dump()));
  // The system's buffers take some megabytes; then it lags behind, and its places are free for others.
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_finished_total{reason=\"cancelled\"}") == 4; }));
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
  EXPECT_TRUE(Logged("finish=disconnected"));
  // Who reads gets everything.
  body["n"] = 1;
  body["max_tokens"] = 60;
  reader.SendRaw(PostText(body.dump()));
  EXPECT_EQ(reader.Receive().Events().back(), "[DONE]");
}

TEST_F(Http, AClientThatLeavesFreesItsPlaces) {
  StartServer();
  for (const bool stream : {false, true}) {
    HttpClient client(port());
    client.SendRaw(PostText(LongBody(stream)));
    ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 4; }));
    client.Close();
    EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
  }
  EXPECT_EQ(Metric("stoch_requests_finished_total{reason=\"cancelled\"}"), 8);
  EXPECT_TRUE(Logged("finish=disconnected"));
  EXPECT_EQ(Metric("stoch_kv_cache_usage_ratio"), 0);
  server_.reset();
  EXPECT_EQ(engine_->free_tokens(), 4 * kLongContext);
}

TEST_F(Http, AQueueIsBoundedAndLeftAtOnce) {
  runner_options_.max_queue = 4;
  StartServer();
  HttpClient running(port());
  HttpClient waiting(port());
  running.SendRaw(PostText(LongBody(true)));
  running.ReadUntil("data: ");
  waiting.SendRaw(PostText(LongBody(false)));
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_waiting") == 4; }));
  const Reply refused = Post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  waiting.Close();
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_waiting") == 0; }));
  EXPECT_EQ(Metric("stoch_requests_running"), 4);  // the others go on
  // More than a queue can ever hold is the request's fault.
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}, {"n", 5}}).status, 400);
}

TEST_F(Http, DrainFinishesWhatRuns) {
  StartServer();
  HttpClient whole(port());
  HttpClient stream(port());
  HttpClient idle(port());
  whole.SendRaw(PostText(LongBody(false, 600)));
  stream.SendRaw(PostText(LongBody(true, 600)));
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_running") + Metric("stoch_requests_waiting") == 8; }));
  EXPECT_TRUE(server_->Drain(std::chrono::seconds(60)));
  EXPECT_EQ(whole.Receive().Json()["usage"]["completion_tokens"], 2400);
  const std::vector<std::string> events = stream.Receive().Events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_ANY_THROW(HttpClient(port()).Call("GET", "/health"));
}

TEST_F(Http, DrainEndsInTimeWithAClearError) {
  StartServer();
  HttpClient stream(port());
  HttpClient whole(port());
  stream.SendRaw(PostText(LongBody(true)));
  stream.ReadUntil("data: ");
  whole.SendRaw(PostText(LongBody(false)));
  ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_waiting") == 4; }));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(server_->Drain(milliseconds(100)));
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(elapsed, milliseconds(100));
  EXPECT_LT(elapsed, milliseconds(3000));  // the answers leave at once
  EXPECT_FALSE(server_->stuck());
  EXPECT_NE(stream.ReadUntil("[DONE]").find("shutting down"), std::string::npos);
  EXPECT_EQ(whole.Receive().status, 503);
}

// Sequences take pages as they grow: four that may each fill the cache run at once.
TEST_F(Http, SequencesTakePagesAsTheyNeedThem) {
  engine_options_.kv_tokens = kLongContext;
  for (const bool reuse : {true, false}) {
    server_.reset();
    runner_options_.prefix_reuse = reuse;
    StartServer();
    HttpClient client(port());
    client.SendRaw(PostText(LongBody(true)));
    ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 4; }));
    EXPECT_LT(Metric("stoch_kv_cache_usage_ratio"), 0.5);
    EXPECT_GT(Metric("stoch_kv_cache_usage_ratio"), 0);
    // A prompt that has no pages yet waits, and nobody overtakes it.
    HttpClient large(port());
    HttpClient small(port());
    large.SendRaw(PostText(Json({{"prompt", std::vector<int>(kLongContext - 100, 5)}, {"max_tokens", 2}}).dump()));
    ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_waiting") == 1; }));
    small.SendRaw(PostText(Json({{"prompt", {1, 5}}, {"max_tokens", 1}}).dump()));
    ASSERT_TRUE(Eventually([this] { return Metric("stoch_requests_waiting") == 2; }));
    client.Close();
    EXPECT_EQ(large.Receive().status, 200);
    EXPECT_EQ(small.Receive().status, 200);
    // Beyond the whole cache is refused before it waits for ever.
    EXPECT_EQ(Post("/v1/completions", {{"prompt", std::vector<int>(kLongContext, 5)}}).status, 400);
  }
}

TEST_F(Http, MayBeDestroyedAtAnyTime) {
  StartServer();
  HttpClient stream(port());
  stream.SendRaw(PostText(LongBody(true)));
  stream.ReadUntil("data: ");
  HttpClient half(port());
  half.SendRaw("POST /v1/comp");
  server_.reset();
  EXPECT_EQ(engine_->free_tokens(), 4 * kLongContext);
}

TEST_F(Http, APortInUseIsNamed) {
  StartServer();
  server_options_.http.port = port();
  try {
    const serve::Server second(server_options_, [](const serve::LogLine&) {});
    FAIL() << "two servers on one port";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(port())), std::string::npos);
  }
}

}  // namespace
}  // namespace stoch::test
