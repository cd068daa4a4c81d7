// SPDX-License-Identifier: Apache-2.0
// Requests that are refused, before any work, with the field at fault.

#include <limits>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

class Errors : public ServerFixture {
 protected:
  void SetUp() override { StartServer(); }

  void ExpectRefused(const std::string& path, const std::string& body, int status, const Json& param) {
    const Reply reply = Call(port(), "POST", path, body);
    EXPECT_EQ(reply.status, status) << body << "\n" << reply.body;
    const Json error = reply.Json()["error"];
    EXPECT_EQ(error["param"], param) << body << "\n" << reply.body;
    EXPECT_EQ(error["code"], status);
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_NE(error["message"], "");
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  }
};

TEST_F(Errors, QuoteWhatIsNoRequestAndNoType) {
  ExpectRefused("/v1/completions", "[]", 400, nullptr);
  const auto message = [&](const std::string& type) {
    const std::string body = R"({"prompt": "a", "response_format": {"type": )" + type + "}}";
    return Call(port(), "POST", "/v1/completions", body).Json()["error"]["message"].get<std::string>();
  };
  const std::string expected = "response_format.type: expected text, json_object or json_schema, got ";
  EXPECT_EQ(message("\"xml\""), expected + "xml");
  EXPECT_EQ(message("5"), expected + "an integer");
}

TEST_F(Errors, NameFieldAndIndex) {
  const std::pair<Json, const char*> cases[] = {
      {{{"prompt", nullptr}}, "prompt"},
      {{{"prompt", 5}}, "prompt"},
      {{{"prompt", Json::array()}}, "prompt"},
      {{{"prompt", Json::object()}}, "prompt"},
      {{{"prompt", {1, 2, 96}}}, "prompt[2]"},
      {{{"prompt", {1, -2}}}, "prompt[1]"},
      {{{"prompt", {1, 2.5}}}, "prompt[1]"},
      {{{"prompt", {1, "a"}}}, "prompt[1]"},
      {{{"prompt", {1, 18446744073709551615ull}}}, "prompt[1]"},
      {{{"prompt", {"a", 1}}}, "prompt[1]"},
      {{{"prompt", {{1, 2}, {3, 4, 500}}}}, "prompt[1][2]"},
      {{{"prompt", {{1, 2}, Json::array()}}}, "prompt[1]"},
      {{{"prompt", {{1, 2}, "a"}}}, "prompt[1]"},
      {{{"prompt", {true}}}, "prompt[0]"},
      {{{"prompt", std::vector<int>(128, 5)}}, "prompt"},
      {{{"prompt", {std::vector<int>{5}, std::vector<int>(200, 5)}}}, "prompt[1]"},
      {{{"prompt", "a"}, {"max_tokens", "5"}}, "max_tokens"},
      {{{"prompt", "a"}, {"max_tokens", 1.5}}, "max_tokens"},
      {{{"prompt", "a"}, {"max_tokens", -1}}, "max_tokens"},
      {{{"prompt", "a"}, {"max_tokens", 0}}, "max_tokens"},
      {{{"prompt", "a"}, {"max_tokens", 1e30}}, "max_tokens"},
      {{{"prompt", "a"}, {"temperature", -1}}, "temperature"},
      {{{"prompt", "a"}, {"temperature", 1e308}}, "temperature"},
      {{{"prompt", "a"}, {"temperature", "hot"}}, "temperature"},
      {{{"prompt", "a"}, {"top_p", 0}}, "top_p"},
      {{{"prompt", "a"}, {"top_p", 1.5}}, "top_p"},
      {{{"prompt", "a"}, {"top_k", -2}}, "top_k"},
      {{{"prompt", "a"}, {"min_p", 2}}, "min_p"},
      {{{"prompt", "a"}, {"repetition_penalty", 0}}, "repetition_penalty"},
      {{{"prompt", "a"}, {"presence_penalty", 1e9}}, "presence_penalty"},
      {{{"prompt", "a"}, {"frequency_penalty", true}}, "frequency_penalty"},
      {{{"prompt", "a"}, {"n", 0}}, "n"},
      {{{"prompt", "a"}, {"n", 129}}, "n"},
      {{{"prompt", "a"}, {"seed", 1.5}}, "seed"},
      {{{"prompt", "a"}, {"stop", 5}}, "stop"},
      {{{"prompt", "a"}, {"stop", {"a", 5}}}, "stop[1]"},
      {{{"prompt", "a"}, {"stop", ""}}, "stop"},
      {{{"prompt", "a"}, {"stop", {"a", ""}}}, "stop[1]"},
      {{{"prompt", "a"}, {"stop_token_ids", {5, 96}}}, "stop_token_ids[1]"},
      {{{"prompt", "a"}, {"ignore_eos", 1}}, "ignore_eos"},
      {{{"prompt", "a"}, {"logprobs", 101}}, "logprobs"},
      {{{"prompt", "a"}, {"logprobs", true}}, "logprobs"},
      {{{"prompt", "a"}, {"echo", "yes"}}, "echo"},
      {{{"prompt", "a"}, {"logit_bias", {1, 2}}}, "logit_bias"},
      {{{"prompt", "a"}, {"logit_bias", {{"96", 1}}}}, "logit_bias[\"96\"]"},
      {{{"prompt", "a"}, {"logit_bias", {{"x", 1}}}}, "logit_bias[\"x\"]"},
      {{{"prompt", "a"}, {"logit_bias", {{"5", "x"}}}}, "logit_bias[\"5\"]"},
      {{{"prompt", "a"}, {"stream", 1}}, "stream"},
      {{{"prompt", "a"}, {"stream_options", {{"include_usage", true}}}}, "stream_options"},
      {{{"prompt", "a"}, {"stream", true}, {"stream_options", {{"include_usage", 1}}}}, "stream_options.include_usage"},
      {{{"prompt", "a"}, {"stream", true}, {"stream_options", 1}}, "stream_options"},
      {{{"prompt", "a"}, {"model", 7}}, "model"},
  };
  for (const auto& [body, param] : cases) ExpectRefused("/v1/completions", body.dump(), 400, param);
  ExpectRefused("/v1/completions", R"({"prompt": "a", "model": "other"})", 404, "model");
  EXPECT_EQ(Metric("stoch_prompt_tokens_total"), 0);  // nothing reached the engine
}

TEST_F(Errors, SayNumbersInAFewDigits) {
  constexpr size_t kShort = 120;
  for (const auto& [body, part] : {std::pair(R"({"prompt": "a", "temperature": 1e308})", "temperature = 1e+308:"),
                                   std::pair(R"({"prompt": "a", "frequency_penalty": -1e300})", "-1e+300"),
                                   std::pair(R"({"prompt": "a", "seed": 99999999999999999999})", "64 bits do not hold"),
                                   std::pair(R"({"prompt": "a", "max_tokens": 1e30})", "64 bits do not hold")}) {
    const Reply reply = Call(port(), "POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    const auto message = reply.Json()["error"]["message"].get<std::string>();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_LT(message.size(), kShort) << message;
  }
}

TEST_F(Errors, NameWhatIsWrongWithAMessage) {
  const std::pair<Json, const char*> cases[] = {
      {Json::object(), "messages"},
      {{{"messages", "hi"}}, "messages"},
      {{{"messages", {"hi"}}}, "messages[0]"},
      {{{"messages", {{{"content", "hi"}}}}}, "messages[0].role"},
      {{{"messages", {{{"role", "user"}}}}}, "messages[0].content"},
      {{{"messages", {{{"role", "user"}, {"content", 3}}}}}, "messages[0].content"},
      {{{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}}, "messages[0].content[0].type"},
      // The tiny model has no chat template.
      {{{"messages", {{{"role", "user"}, {"content", "hi"}}}}}, "messages"},
  };
  for (const auto& [body, param] : cases) {
    ExpectRefused("/v1/chat/completions", body.dump(), 400, param);
  }
}

TEST_F(Errors, RefuseWhatIsNoJson) {
  for (const char* body : {"", "{", "[]", "\"a\"", "{\"prompt\": NaN}", "{\"prompt\": 1e999}", "{\"a\":1,\"a\":2}",
                           "{\"prompt\": \"\xff\"}", "null", "{\"prompt\": \"a\"} x"}) {
    const Reply reply = Call(port(), "POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.Json()["error"]["type"], "invalid_request_error") << body;
  }
  const std::string deep(100, '[');
  EXPECT_EQ(Call(port(), "POST", "/v1/completions", deep).status, 400);
}

TEST_F(Errors, LeaveTheServerWell) {
  Call(port(), "POST", "/v1/completions", "{");
  EXPECT_EQ(Complete({{"prompt", "a"}, {"max_tokens", 2}, {"ignore_eos", true}})["usage"]["completion_tokens"], 2);
}

}  // namespace
}  // namespace stoch::test
