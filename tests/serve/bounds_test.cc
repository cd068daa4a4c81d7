// SPDX-License-Identifier: Apache-2.0
// What one request may ask of the server, and what running out of memory does to the others.

#include <atomic>
#include <new>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

class Bounds : public ServerFixture {
 protected:
  std::string Refusal(const Json& body, const std::string& path = "/v1/completions") const {
    const Reply reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    return reply.status == 400 ? reply.Json()["error"]["param"].get<std::string>() : "";
  }
};

const Json kPrompt = {1, 40, 41, 7, 9, 33, 60, 12};

TEST_F(Bounds, AnswersHaveSoManyValues) {
  server_options_.api.max_answer_values = 1000;
  StartServer();
  Json body = {{"prompt", kPrompt}, {"max_tokens", 2}, {"n", 5},
               {"logprobs", 19},    {"echo", true},    {"ignore_eos", true}};
  EXPECT_EQ(Complete(body)["choices"].size(), 5u);  // 5 x (8 + 2) x (1 + 19)
  body["logprobs"] = 20;
  EXPECT_EQ(Refusal(body), "logprobs");
  body["echo"] = false;
  EXPECT_EQ(Post("/v1/completions", body).status, 200);
  body["prompt"] = {kPrompt, kPrompt, kPrompt, kPrompt, kPrompt};
  EXPECT_EQ(Refusal(body), "logprobs");  // 25 x 2 x 21
  // The context bounds what max_tokens asks for.
  EXPECT_EQ(Refusal({{"prompt", kPrompt}, {"max_tokens", 1 << 30}, {"n", 9}}), "max_tokens");
  EXPECT_EQ(Post("/v1/completions", {{"prompt", kPrompt}, {"max_tokens", 1 << 30}, {"n", 8}}).status, 200);
  EXPECT_EQ(Metric("stoch_requests_finished_total{reason=\"error\"}"), 0);
}

TEST_F(Bounds, TheDefaultHoldsAMillionValues) {
  StartServer();
  const std::vector<int> prompt(100, 5);
  const Json body = {{"prompt", prompt}, {"max_tokens", 1}, {"n", 99}, {"logprobs", 100}, {"echo", true}};
  EXPECT_EQ(Refusal(body), "logprobs");  // 99 x 101 x 101: 2 KB that would have made 40 MB
  EXPECT_EQ(Metric("stoch_prompt_tokens_total"), 0);
}

// Far more JSON than is ever made at once.
TEST_F(Bounds, LargeAnswersLeaveInPieces) {
  StartServer();
  const std::vector<int> prompt(120, 7);
  for (const bool echo : {true, false}) {
    const Json body = {{"prompt", prompt}, {"max_tokens", 8},   {"n", 6}, {"logprobs", 90}, {"echo", echo},
                       {"seed", 4},        {"ignore_eos", true}};
    const Reply whole = Post("/v1/completions", body);
    EXPECT_EQ(whole.status, 200);
    EXPECT_EQ(whole.headers.count("transfer-encoding"), echo ? 1u : 0u);
    EXPECT_EQ(whole.headers.count("content-length"), echo ? 0u : 1u);
    EXPECT_EQ(whole.body.size() > 1u << 20, echo);
    EXPECT_EQ(whole.Json()["choices"], Collect(body));
    EXPECT_EQ(whole.Json()["usage"]["completion_tokens"], 48);
  }
  // Clients that know nothing of pieces get them in a row.
  HttpClient old(port());
  const std::string body =
      Json({{"prompt", prompt}, {"max_tokens", 1}, {"n", 2}, {"logprobs", 90}, {"echo", true}}).dump();
  old.SendRaw("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string answer = old.ReadToEnd();
  EXPECT_EQ(Json::parse(answer.substr(answer.find("\r\n\r\n") + 4))["choices"].size(), 2u);
}

TEST_F(Bounds, StopsAndBiasesAreFewAndShort) {
  StartServer();
  Json body = {{"prompt", kPrompt}, {"max_tokens", 2}, {"stop", std::vector<std::string>(16, std::string(256, 'x'))}};
  EXPECT_EQ(Post("/v1/completions", body).status, 200);
  body["stop"].push_back("y");
  EXPECT_EQ(Refusal(body), "stop");
  body["stop"] = {"a", std::string(257, 'x')};
  EXPECT_EQ(Refusal(body), "stop[1]");
  body["stop"] = std::string(257, 'x');
  EXPECT_EQ(Refusal(body), "stop");
  body = {{"prompt", kPrompt}, {"max_tokens", 2}, {"stop_token_ids", std::vector<int>(1024, 5)}};
  EXPECT_EQ(Post("/v1/completions", body).status, 200);
  body["stop_token_ids"].push_back(5);
  EXPECT_EQ(Refusal(body), "stop_token_ids");
  body = {{"prompt", kPrompt}, {"max_tokens", 2}};
  for (int id = 0; id < 1025; ++id) body["logit_bias"][std::to_string(id)] = 1;
  EXPECT_EQ(Refusal(body), "logit_bias");
}

// Lists of any length are told by the field and its limit, not by the memory that they would have taken.
TEST_F(Bounds, ListsBeyondTheirLimitsAreNamed) {
  StartServer();
  const auto refusal = [&](const std::string& path, const std::string& list, const std::string& entry,
                           const std::string& end) {
    std::string body = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,)" + list;
    const size_t many = 4'500'000 / (entry.size() + 8);
    for (size_t i = 0; i < many; ++i) {
      std::string one = entry;
      if (const size_t at = one.find('#'); at != std::string::npos) one.replace(at, 1, std::to_string(i));
      body += one;
    }
    const Reply reply = Call(port(), "POST", path, body + end + "}");
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json error = reply.Json()["error"];
    return error["param"].dump() + " " + error["message"].get<std::string>();
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    EXPECT_EQ(refusal(path, R"("stop":[)", R"("xxxxxx#",)", R"("x"])"),
              R"("stop" stop: has too many strings; allowed are 16)");
    EXPECT_EQ(refusal(path, R"("stop_token_ids":[)", "7,", "7]"),
              R"("stop_token_ids" stop_token_ids: has too many ids; allowed are 1024)");
    EXPECT_EQ(refusal(path, R"("logit_bias":{)", R"("#":1,)", R"("x":1})"),
              R"("logit_bias" logit_bias: has too many entries; allowed are 1024)");
  }
  EXPECT_EQ(refusal("/v1/completions", R"("prompt":[)", "7,", "7]"),
            R"("prompt" prompt: has too many token ids; allowed are 128)");
  EXPECT_EQ(refusal("/v1/completions", R"("prompt":[)", R"("a",)", R"("a"])"),
            R"("n" n: the list of prompts makes too many sequences; allowed are 1024 per request)");
  // A chat asks for no prompt, other endpoints for no stop strings. This model has no template for chats.
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"prompt", std::vector<int>(2000, 7)}};
  EXPECT_EQ(Refusal(chat, "/v1/chat/completions"), "messages");
  EXPECT_EQ(Post("/tokenize", {{"prompt", "a"}, {"stop", std::vector<int>(2000, 7)}}).status, 200);
}

TEST_F(Bounds, FieldsOfAClientFillNoLog) {
  StartServer();
  Json body = {{"prompt", kPrompt}, {"max_tokens", 1}};
  for (int i = 0; i < 2000; ++i) body["field" + std::to_string(10000 + i) + std::string(1000, 'x')] = i;
  const Reply reply = Post("/v1/completions", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("field10000xxx"), std::string::npos) << reply.body;
  EXPECT_LT(reply.body.size(), 500u);
  EXPECT_EQ(CountLogLines("field10"), 1);  // why it was refused
  EXPECT_LT(LogLine("field10").size(), 700u);
  body = {{"prompt", kPrompt}, {"logit_bias", {{std::string(100'000, 'k'), 1}}}};
  EXPECT_LT(Post("/v1/completions", body).body.size(), 500u);
}

// Two bytes of text are fifty in memory.
TEST_F(Bounds, BodiesTakeSoMuchMemory) {
  StartServer();
  const std::pair<const char*, int> pieces[] = {
      {"1,", 450'000}, {"[],", 125'000}, {"\"x\",", 150'000}, {"{},", 125'000}};
  for (const auto& [piece, count] : pieces) {
    std::string body = "{\"prompt\":[5],\"max_tokens\":1,\"metadata\":[";
    for (int i = 0; i < count; ++i) body += piece;
    const Reply reply = Call(port(), "POST", "/v1/completions", body + "1]}");
    EXPECT_EQ(reply.status, 400) << piece;
    EXPECT_NE(reply.body.find("at most 10 MiB of memory"), std::string::npos) << reply.body;
    // Half of it is a request like any other.
    body.resize(body.size() - static_cast<size_t>(count / 2) * std::string_view(piece).size());
    EXPECT_EQ(Call(port(), "POST", "/v1/completions", body + "1]}").status, 200) << piece;
  }
}

TEST_F(Bounds, FieldsThatChangeTheAnswerAreRefused) {
  StartServer();
  const Json tool = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const std::pair<Json, const char*> refused[] = {
      {{{"tools", tool}}, "tools"},
      {{{"tool_choice", "required"}}, "tool_choice"},
      {{{"tool_choice", "auto"}}, "tool_choice"},
      {{{"response_format", {{"type", "json_object"}}}}, "response_format"},
      {{{"response_format", {{"type", "json_schema"}, {"json_schema", Json::object()}}}},
       "response_format.json_schema.schema"},
      {{{"suffix", "the end"}}, "suffix"},
      {{{"best_of", 2}}, "best_of"},
      {{{"best_of", 4}, {"n", 3}}, "best_of"},
      {{{"best_of", "x"}}, "best_of"},
      {{{"min_tokens", 5}}, "min_tokens"},
      {{{"guided_regex", "a+"}}, "guided_regex"},
      {{{"use_beam_search", true}}, "use_beam_search"},
  };
  for (const auto& [more, param] : refused) {
    Json body = {{"prompt", kPrompt}, {"max_tokens", 1}};
    body.update(more);
    EXPECT_EQ(Refusal(body), param) << more;
  }
  const std::vector<Json> neutral = {
      {{"tools", Json::array()}, {"tool_choice", "none"}},
      {{"tools", nullptr}, {"response_format", nullptr}, {"suffix", nullptr}, {"best_of", nullptr}},
      {{"response_format", {{"type", "text"}}}},
      {{"suffix", ""}, {"best_of", 2}, {"n", 3}},
      {{"length_penalty", 1.0}, {"min_tokens", 0}},
  };
  for (const Json& more : neutral) {
    Json body = {{"prompt", kPrompt}, {"max_tokens", 1}};
    body.update(more);
    EXPECT_EQ(Post("/v1/completions", body).status, 200) << more;
  }
  EXPECT_EQ(CountLogLines("ignored_field"), 0);
}

// Letters that count what they tokenize, and for which memory runs out when told.
class ScarceTokenizer : public LettersTokenizer {
 public:
  static constexpr int32_t kPoison = 77;  // no memory for its bytes

  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    ++encoded;
    if (text.find('!') != std::string_view::npos) throw std::bad_alloc();
    return LettersTokenizer::Encode(text, options);
  }
  std::string TokenBytes(int32_t id) const override {
    if (armed && id == kPoison) throw std::bad_alloc();
    return LettersTokenizer::TokenBytes(id);
  }
  std::string Decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += LettersTokenizer::TokenBytes(id);
    return text;
  }
  std::string TokenText(int32_t id) const override {
    if (scarce_text) throw std::bad_alloc();
    return LettersTokenizer::TokenText(id);
  }
  mutable std::atomic<int> encoded = 0;
  std::atomic<bool> armed = false;
  std::atomic<bool> scarce_text = false;
};

class Memory : public Bounds {
 protected:
  void SetUp() override { StartServer(scarce_); }
  void TearDown() override { server_.reset(); }
  void ExpectOutOfMemory(const Json& body) {
    const Reply reply = Post("/v1/completions", body);
    EXPECT_EQ(reply.status, 500) << reply.body;
    EXPECT_EQ(reply.Json()["error"]["type"], "server_error");
  }

  ScarceTokenizer scarce_;
};

TEST_F(Memory, TextsThatNoContextHoldsAreNotTokenized) {
  const std::string longest(kContext * 4, 'a');
  EXPECT_EQ(Refusal({{"prompt", longest + "a"}}), "prompt");
  EXPECT_EQ(Refusal({{"prompt", {"a", longest + "a"}}}), "prompt[1]");
  EXPECT_EQ(Refusal({{"prompt", longest + "a"}}, "/tokenize"), "prompt");
  EXPECT_EQ(Refusal({{"prompt", std::vector<std::string>(1025, "a")}}), "n");
  EXPECT_EQ(scarce_.encoded, 1);  // the "a" before the one that is too long
  EXPECT_EQ(Refusal({{"prompt", longest}}), "prompt");
  EXPECT_EQ(scarce_.encoded, 2);
}

TEST_F(Memory, RunningOutOfItEndsOneRequest) {
  const Json question = {
      {"prompt", kPrompt}, {"max_tokens", 30}, {"logprobs", 2}, {"ignore_eos", true}, {"logit_bias", {{"77", -1000}}}};
  const Json alone = Complete(question)["choices"];
  scarce_.armed = true;
  std::atomic<bool> done = false;
  std::thread neighbour([&] {
    while (!done) EXPECT_EQ(Complete(question)["choices"], alone);
  });
  // When a sequence starts, when a token is decoded, when a prompt is tokenized.
  ExpectOutOfMemory({{"prompt", {5, ScarceTokenizer::kPoison}}, {"max_tokens", 4}});
  ExpectOutOfMemory({{"prompt", {5, 6}}, {"max_tokens", 4}, {"logit_bias", {{"77", 1000}}}});
  ExpectOutOfMemory({{"prompt", "oh!"}, {"max_tokens", 4}});
  const Json streamed = {{"prompt", {5, 6}}, {"max_tokens", 4}, {"logit_bias", {{"77", 1000}}}, {"stream", true}};
  const Reply reply = Post("/v1/completions", streamed);
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.body.find("out of memory"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.Events().back(), "[DONE]");
  done = true;
  neighbour.join();
  // When an answer is written.
  scarce_.scarce_text = true;
  ExpectOutOfMemory(question);
  Json stream = question;
  stream["stream"] = true;
  EXPECT_NE(Post("/v1/completions", stream).body.find("out of memory"), std::string::npos);
  scarce_.scarce_text = false;
  EXPECT_EQ(Complete(question)["choices"], alone);
  EXPECT_EQ(server_->failure(), nullptr);
  EXPECT_EQ(Call(port(), "GET", "/health").status, 200);
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 0; }));
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_kv_cache_usage_ratio") == 0; }));
}

}  // namespace
}  // namespace stoch::test
