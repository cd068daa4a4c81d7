// SPDX-License-Identifier: Apache-2.0
// The endpoints that generate nothing, and what every endpoint shares.

#include <set>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

class Endpoints : public ServerFixture {};

TEST_F(Endpoints, SayLoadingUntilThereIsAModel) {
  Listen();
  EXPECT_EQ(Call(port(), "GET", "/health").status, 503);
  EXPECT_EQ(Call(port(), "GET", "/health").Json()["status"], "loading");
  const Reply refused = Post("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  engine_ = OpenEngine();
  Attach(&tokenizer_);
  EXPECT_EQ(Call(port(), "GET", "/health").status, 200);
}

TEST_F(Endpoints, ModelsNamesTheModelAndItsArithmetic) {
  StartServer();
  const Json models = Call(port(), "GET", "/v1/models").Json();
  ASSERT_EQ(models["data"].size(), 1u);
  const Json& model = models["data"][0];
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(model["id"], "tiny");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["max_model_len"], kContext);
  EXPECT_EQ(model["precision"], "sc");
  EXPECT_EQ(model["sc"], engine_->sc_description());
  EXPECT_EQ(Call(port(), "GET", "/v1/models/tiny").Json(), model);
  EXPECT_EQ(Call(port(), "GET", "/v1/models/%74in%79").Json(), model);
  EXPECT_EQ(Call(port(), "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(Call(port(), "POST", "/v1/models/tiny", "{}").headers.at("allow"), "GET");
}

TEST_F(Endpoints, TokenizeAndBack) {
  StartServer();
  const Json with_bos = Post("/tokenize", {{"prompt", "ab"}}).Json();
  EXPECT_EQ(with_bos["tokens"], Json({1, 'a' - ' ', 'b' - ' '}));
  EXPECT_EQ(with_bos["count"], 3);
  const Json without = Post("/tokenize", {{"prompt", "ab"}, {"add_special_tokens", false}}).Json();
  EXPECT_EQ(without["tokens"], Json({'a' - ' ', 'b' - ' '}));
  EXPECT_EQ(Post("/detokenize", {{"tokens", with_bos["tokens"]}}).Json()["prompt"], "ab");
  EXPECT_EQ(Post("/detokenize", {{"tokens", {5, 96}}}).Json()["error"]["param"], "tokens[1]");
  EXPECT_EQ(Post("/tokenize", {{"prompt", 3}}).Json()["error"]["param"], "prompt");
  const Json info = Call(port(), "GET", "/tokenizer_info").Json();
  EXPECT_EQ(info["bos_token_id"], 1);
  EXPECT_EQ(info["eos_token_id"], 2);
  EXPECT_TRUE(info["pad_token"].is_null());
  EXPECT_TRUE(info["chat_template"].is_null());
}

TEST_F(Endpoints, TokenizeKnowsWrittenSpecialTokens) {
  const std::unique_ptr<Tokenizer> demo = LoadTokenizer(std::string(STOCH_SOURCE_DIR) + "/demo");
  Listen();
  engine_ = OpenEngine();
  Attach(demo.get());
  const std::string eos = Call(port(), "GET", "/tokenizer_info").Json()["eos_token"];
  const Json body = {{"prompt", eos}, {"add_special_tokens", false}};
  EXPECT_EQ(Post("/tokenize", body).Json()["tokens"], Json(demo->eos_ids()));
  Json as_text = body;
  as_text["parse_special"] = false;
  EXPECT_GT(Post("/tokenize", as_text).Json()["count"], 1);
}

TEST_F(Endpoints, MetricsCountWhatHappened) {
  StartServer();
  EXPECT_EQ(Metric("stoch_generated_tokens_total"), 0);
  Complete({{"prompt", {3, 4, 5}}, {"max_tokens", 7}, {"ignore_eos", true}, {"n", 2}});
  EXPECT_EQ(Metric("stoch_generated_tokens_total"), 14);
  EXPECT_EQ(Metric("stoch_prompt_tokens_total"), 6);
  EXPECT_EQ(Metric("stoch_requests_finished_total{reason=\"length\"}"), 2);
  EXPECT_EQ(Metric("stoch_http_responses_total{code=\"200\"}"), 5);  // four of them GET /metrics
  EXPECT_EQ(Metric("stoch_time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(Metric("stoch_inter_token_latency_seconds_count"), 12);
  EXPECT_EQ(Metric("stoch_request_latency_seconds_count"), 2);
  EXPECT_EQ(Metric("stoch_queue_time_seconds_count"), 2);
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_kv_cache_usage_ratio") == 0; }));
}

TEST_F(Endpoints, VersionAndPage) {
  server_options_.api.version = "1.2.3";
  server_options_.api.commit = "abc";
  StartServer();
  EXPECT_EQ(Call(port(), "GET", "/version").Json(), Json({{"version", "1.2.3"}, {"commit", "abc"}}));
  const Reply page = Call(port(), "GET", "/?from=somewhere");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.body.rfind("<!doctype html>", 0), 0u);
  EXPECT_NE(page.body.find("</html>"), std::string::npos);
}

TEST_F(Endpoints, OtherPathsAndMethodsAreNamed) {
  StartServer();
  const Reply missing = Call(port(), "GET", "/v1/embeddings");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.Json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(missing.Json()["error"]["message"], "there is no /v1/embeddings here");
  for (const char* path : {"/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completion"}) {
    EXPECT_EQ(Call(port(), "POST", path, "{}").Json()["error"]["message"],
              "there is no " + std::string(path) + " here; did you mean /v1/chat/completions?");
  }
  const Reply wrong = Call(port(), "GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  const Reply head = Call(port(), "HEAD", "/version");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_NE(head.headers.at("content-length"), "0");
}

// As a proxy passes it on, and RFC 9112 wants it taken.
TEST_F(Endpoints, ATargetMayBeAWholeUri) {
  StartServer();
  for (const char* target : {"http://127.0.0.1/version", "http://h:80/version?x=1", "https://h/version#"}) {
    const Reply reply = Call(port(), "GET", target);
    EXPECT_EQ(reply.status, std::string_view(target).ends_with('#') ? 404 : 200) << target;
  }
  EXPECT_EQ(Call(port(), "GET", "http://h").headers.at("content-type").substr(0, 9), "text/html");
  EXPECT_EQ(Call(port(), "GET", "/http://h/version").status, 404);
}

TEST_F(Endpoints, ALongPathFillsNoLogAndNoError) {
  StartServer();
  const std::string path = "/" + std::string(5000, 'a');
  for (const std::string& prefix : {std::string(), std::string("/v1/models"), std::string("/v1/streams")}) {
    const Reply reply = Call(port(), "GET", prefix + path);
    EXPECT_EQ(reply.status, 404);
    EXPECT_LT(reply.body.size(), 400u) << reply.body;
  }
  EXPECT_TRUE(Logged("refused"));
  EXPECT_FALSE(Logged(std::string(200, 'a')));
}

TEST_F(Endpoints, AKeyGuardsAllButHealth) {
  server_options_.api.api_keys = {"secret"};
  StartServer();
  EXPECT_EQ(Call(port(), "GET", "/health").status, 200);
  for (const char* path : {"/v1/models", "/v1/models/tiny", "/metrics", "/version", "/nowhere"}) {
    EXPECT_EQ(Call(port(), "GET", path).status, 401) << path;
    EXPECT_EQ(Call(port(), "GET", path, "", {{"Authorization", "Bearer secre7"}}).status, 401) << path;
    EXPECT_EQ(Call(port(), "GET", path, "", {{"Authorization", "Bearer "}}).status, 401) << path;
  }
  for (const char* key : {"Bearer secret", "bearer secret", "BEARER secret"}) {
    EXPECT_EQ(Call(port(), "GET", "/v1/models", "", {{"Authorization", key}}).status, 200) << key;
  }
  for (const char* key : {"secret", "Basic secret", "Bearer", "Bearer  secret", "Bearer secretx"}) {
    EXPECT_EQ(Call(port(), "GET", "/v1/models", "", {{"Authorization", key}}).status, 401) << key;
  }
  // The page holds nothing to keep, and asks for the key itself.
  const Reply page = Call(port(), "GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find("id=\"key\" type=\"password\""), std::string::npos);
}

// Of a body that nobody wants, no byte is waited for.
TEST_F(Endpoints, BodiesOfOthersAreNotRead) {
  server_options_.api.api_keys = {"secret", "other"};
  StartServer();
  const auto answer = [&](const std::string& request) {
    HttpClient client(port());
    client.SendRaw(request + "Host: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n");
    client.SendRaw("\r\n");
    const std::string line = client.ReadUntil("\r\n");
    return line.substr(0, 12);
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  EXPECT_EQ(answer(post), "HTTP/1.1 401");
  EXPECT_EQ(answer(post + "Authorization: Bearer secre7\r\n"), "HTTP/1.1 401");
  for (const std::string key : {"secret", "other"}) {
    EXPECT_EQ(answer(post + "Authorization: Bearer " + key + "\r\n"), "HTTP/1.1 100");
  }
  EXPECT_EQ(answer("POST /health HTTP/1.1\r\n"), "HTTP/1.1 405");
  EXPECT_EQ(answer("POST /nowhere HTTP/1.1\r\nAuthorization: Bearer other\r\n"), "HTTP/1.1 404");
}

TEST_F(Endpoints, WithoutAKeyAnyTokenWillDo) {
  StartServer();
  EXPECT_EQ(Call(port(), "GET", "/v1/models", "", {{"Authorization", "Bearer "}}).status, 200);
  EXPECT_EQ(Call(port(), "GET", "/v1/models", "", {{"Authorization", "Bearer EMPTY"}}).status, 200);
}

TEST_F(Endpoints, RequestIdsComeBackAndAreLogged) {
  StartServer();
  const std::string body = Json({{"prompt", "a"}, {"max_tokens", 1}, {"store", true}}).dump();
  const Reply named = Call(port(), "POST", "/v1/completions", body, {{"X-Request-Id", "my-id.7"}});
  EXPECT_EQ(named.headers.at("x-request-id"), "my-id.7");
  // What the client calls it is for logs; the id is one that nobody can guess.
  const std::string id = named.Json()["id"];
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), std::string::npos) << id;
  EXPECT_EQ(id.size(), 5u + 32);
  EXPECT_TRUE(Eventually([&] { return Logged("completion id=my-id.7 answer=" + id.substr(0, 17) + " status=200"); }));
  EXPECT_FALSE(Logged(id));
  EXPECT_TRUE(Logged("ignored_fields id=my-id.7 count=1 names=store"));
  // What could break a header or a log line is replaced.
  const Reply odd = Call(port(), "POST", "/v1/completions", body, {{"X-Request-Id", "a b\"c"}});
  EXPECT_EQ(odd.headers.at("x-request-id").find(' '), std::string::npos);
  EXPECT_NE(odd.headers.at("x-request-id"), "");
}

TEST_F(Endpoints, IdsAreOfOneAnswerEach) {
  StartServer();
  std::set<std::string> ids;
  const std::string body = Json({{"prompt", "a"}, {"max_tokens", 1}}).dump();
  for (int i = 0; i < 20; ++i) {
    for (const std::map<std::string, std::string>& headers :
         {std::map<std::string, std::string>{}, {{"X-Request-Id", "the-same"}}}) {
      ids.insert(Call(port(), "POST", "/v1/completions", body, headers).Json()["id"]);
    }
  }
  EXPECT_EQ(ids.size(), 40u);
  // Neither counts them: any two differ in most digits.
  const std::string first = *ids.begin(), second = *std::next(ids.begin());
  int differ = 0;
  for (size_t i = 5; i < first.size(); ++i) differ += first[i] != second[i] ? 1 : 0;
  EXPECT_GT(differ, 10);
}

TEST(LogLine, IsAnObjectAsJson) {
  const serve::LogLine line = {serve::LogLevel::kWarning, "e", {{"a", "1"}, {"b", "x \"y\""}, {"d", "\n\xff"}}};
  EXPECT_EQ(serve::FormatJsonLogLine("now", line),
            R"({"time":"now","level":"warning","event":"e","a":"1","b":"x \"y\"","d":"\n\ufffd"})");
}

TEST(LogLine, StaysOneLine) {
  EXPECT_EQ(serve::FormatLogLine({serve::LogLevel::kInfo, "e", {{"a", "1"}, {"b", "x y"}, {"c", ""}, {"d", "\n\xff"}}}),
            "e a=1 b=\"x y\" c=\"\" d=\"\\n\\ufffd\"");
}

}  // namespace
}  // namespace stoch::test
