// SPDX-License-Identifier: Apache-2.0
// Answers that a request says the form of: with n, batches, streams, chats and tools.
#include <future>
#include <regex>

#include "engine/grammar/grammar_compiler.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

constexpr const char* kSchema = R"({"type":"object","additionalProperties":false,"required":["z","a"],
    "properties":{"z":{"enum":["x","y"]},"a":{"type":"integer","minimum":0,"maximum":99}}})";

// Letters that can write JSON and lines: an id of neither use stands for a quote, and one for the end of a line.
class JsonLetters : public LettersTokenizer {
 public:
  static constexpr int32_t kQuote = 95, kNewline = 64;
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids = LettersTokenizer::Encode(text, options);
    for (int32_t& id : ids) {
      if (id == '"' - ' ') id = kQuote;
      if (id == '\n' - ' ') id = kNewline;
    }
    return ids;
  }
  std::string TokenBytes(int32_t id) const override {
    if (id == kQuote) return "\"";
    return id == kNewline ? "\n" : LettersTokenizer::TokenBytes(id);
  }
};

class Grammars : public ServerFixture {
 protected:
  Grammars() : ServerFixture(512) {}
  void SetUp() override {
    if (!WhyNoGrammars().empty()) GTEST_SKIP() << WhyNoGrammars();
    compiler_ = std::make_shared<GrammarCompiler>(letters_, 96);
    engine_options_.make_guide = MakerOf(compiler_);
    server_options_.api.tools = serve::ToolForm::kHermes;
    check_grammar_ = [compiler = compiler_](const GrammarSpec& grammar) { compiler->Compile(grammar); };
    chat_settings_.chat_template = std::string(STOCH_SOURCE_DIR) + "/engine/chat/templates/chatml.jinja";
    StartServer(letters_);
  }
  Json Ask(const Json& more) const {
    Json body = {{"prompt", "abc"}, {"max_tokens", 200}, {"temperature", 1}, {"seed", 3}};
    body.update(more);
    return Complete(body)["choices"];
  }
  static void ExpectOfSchema(const std::string& text) {
    const Json json = Json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_TRUE(json.at("z") == "x" || json.at("z") == "y") << text;
    EXPECT_TRUE(json.at("a").is_number_integer()) << text;
    EXPECT_LT(text.find("\"z\""), text.find("\"a\"")) << text;
  }
  std::string Refusal(const char* path, const std::string& body) const {
    const Reply reply = Call(port(), "POST", path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.Json()["error"]["param"];
  }

  static inline const JsonLetters letters_;  // outlives the server
  std::shared_ptr<GrammarCompiler> compiler_;
};

// It is the request's grammar and the model's vocabulary that do not go together: nobody's server has failed.
TEST_F(Grammars, ThatNoTokenContinuesAreRefusedWithTheReason) {
  const std::string why = "the grammar goes on with what no token of the vocabulary is";
  Json body = {{"prompt", "abc"}, {"max_tokens", 20}, {"guided_regex", "ab\u00fc\u00fc"}};
  const Reply reply = Post("/v1/completions", body);
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(reply.Json()["error"]["message"], why);
  EXPECT_EQ(reply.Json()["error"]["type"], "invalid_request_error");
  body["stream"] = true;  // what is known by then has been told
  const std::vector<std::string> events = Post("/v1/completions", body).Events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(Json::parse(events.front())["choices"][0]["text"], "a");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["message"], why);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], 400);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Ask({{"guided_regex", "ab"}})[0]["text"], "ab");
}

// The body as text: a parsed one has lost the order of the schema's properties.
std::string WithSchema(const std::string& field) {
  return R"({"prompt":"abc","max_tokens":200,"temperature":1,"seed":3,)" + field + "}";
}

TEST_F(Grammars, AnswerWithJsonThatTheSchemaAllows) {
  const std::string schema = kSchema;
  const std::string fields[] = {
      "\"guided_json\":" + schema,
      "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":" +
          schema + "}}",
      "\"structured_outputs\":{\"json\":" + schema + "}",
      "\"json_schema\":" + schema,
  };
  std::string first;
  for (const std::string& field : fields) {
    const Reply reply = Call(port(), "POST", "/v1/completions", WithSchema(field));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json choice = reply.Json()["choices"][0];
    ExpectOfSchema(choice["text"]);
    EXPECT_EQ(choice["finish_reason"], "stop");
    if (first.empty()) first = choice["text"];
    EXPECT_EQ(choice["text"], first) << field;
  }
}

TEST_F(Grammars, AnswerInEveryForm) {
  EXPECT_TRUE(std::regex_match(Ask({{"guided_regex", "[a-d]{3}-[0-9]+"}})[0]["text"].get<std::string>(),
                               std::regex("[a-d]{3}-[0-9]+")));
  const std::string choice = Ask({{"guided_choice", {"red", "green"}}})[0]["text"];
  EXPECT_TRUE(choice == "red" || choice == "green") << choice;
  const std::string word = Ask({{"guided_grammar", "root ::= \"a\" root | \"b\""}})[0]["text"];
  EXPECT_TRUE(std::regex_match(word, std::regex("a*b"))) << word;
  EXPECT_EQ(Ask({{"structured_outputs", {{"choice", {"only"}}}}})[0]["text"], "only");
  EXPECT_EQ(Ask({{"response_format", {{"type", "text"}}}})[0]["text"], Ask(Json::object())[0]["text"]);
  EXPECT_EQ(Ask({{"grammar", ""}, {"structured_outputs", Json::object()}})[0]["text"], Ask(Json::object())[0]["text"]);
}

TEST_F(Grammars, StreamsBatchesAndSeveralChoicesAreTheSame) {
  const Json guided = {{"prompt", {"abc", "xyz"}},      {"max_tokens", 60}, {"temperature", 1}, {"seed", 9}, {"n", 3},
                       {"guided_regex", "[a-z]{5,20}"}, {"logprobs", 2}};
  const Json whole = Complete(guided)["choices"];
  ASSERT_EQ(whole.size(), 6u);
  const Json streamed = Collect(guided);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(std::regex_match(whole[i]["text"].get<std::string>(), std::regex("[a-z]{5,20}"))) << whole[i];
    EXPECT_EQ(whole[i]["text"], streamed[i]["text"]);
    EXPECT_EQ(whole[i]["logprobs"], streamed[i]["logprobs"]);
  }
  EXPECT_NE(whole[0]["text"], whole[1]["text"]);
  // Next to others that have none, of one and the same token limit.
  std::vector<std::future<Json>> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(std::async(std::launch::async, [&, i] {
      return Ask(i % 2 == 0 ? Json{{"max_tokens", 40}} : Json{{"guided_regex", "(ab)+c"}, {"max_tokens", 40}});
    }));
  }
  EXPECT_EQ(Complete(guided)["choices"], whole);
  for (auto& other : others) EXPECT_EQ(other.get().size(), 1u);
}

TEST_F(Grammars, AThousandAnswersParse) {
  const std::string body = WithSchema("\"n\":4,\"guided_json\":" + std::string(kSchema));
  int answers = 0;
  for (int seed = 0; answers < 1000; ++seed) {
    std::string other = body;
    other.replace(other.find("\"seed\":3"), 8, "\"seed\":" + std::to_string(seed));
    const Reply reply = Call(port(), "POST", "/v1/completions", other);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json answer = reply.Json();
    for (const Json& choice : answer["choices"]) {
      ExpectOfSchema(choice["text"]);
      ++answers;
    }
  }
}

TEST_F(Grammars, AreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("guided_regex":"(a")", "guided_regex"},
      {R"("guided_regex":"")", "guided_regex"},
      {R"("guided_regex":5)", "guided_regex"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("guided_choice":["a",5])", "guided_choice[1]"},
      {R"("guided_json":{"type":"objekt"})", "guided_json"},
      {R"("guided_json":[])", "guided_json"},
      {R"("guided_grammar":"a ::= b")", "guided_grammar"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{}})", "response_format.json_schema.schema"},
      {R"("structured_outputs":{"jason":{}})", "structured_outputs.jason"},
      {R"("guided_regex":"a","guided_choice":["a"])", "guided_choice"},
      {R"("guided_regex":"a","ignore_eos":true)", "guided_regex"},
  };
  for (const auto& [field, param] : cases) EXPECT_EQ(Refusal("/v1/completions", WithSchema(field)), param) << field;
  const std::string large = "\"guided_regex\":\"" + std::string(kMaxGrammarBytes + 1, 'a') + "\"";
  EXPECT_EQ(Refusal("/v1/completions", WithSchema(large)), "guided_regex");
}

// ------------------------------------------------------------------------------------------------------- chats ----

constexpr const char* kWeather = R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object",
    "properties":{"city":{"enum":["Oslo","Rome"]},"days":{"type":"integer","minimum":1,"maximum":9}},
    "required":["city","days"],"additionalProperties":false}}},
    {"type":"function","function":{"name":"time","parameters":{"type":"object","properties":{}}}}])";

std::string Chat(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"a"}],"max_tokens":300,"temperature":1,"seed":5,"tools":)" +
         std::string(kWeather) + "," + more + "}";
}

void ExpectCall(const Json& call, const char* name) {
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["id"].get<std::string>().substr(0, 5), "call_");
  EXPECT_TRUE(name == nullptr || call["function"]["name"] == name) << call;
  const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
  ASSERT_TRUE(arguments.is_object()) << call;
  if (call["function"]["name"] != "weather") return;
  EXPECT_TRUE(arguments["city"] == "Oslo" || arguments["city"] == "Rome");
  EXPECT_TRUE(arguments["days"].is_number_integer());
}

TEST_F(Grammars, AToolThatIsNamedIsCalled) {
  const std::string named = R"("tool_choice":{"type":"function","function":{"name":"weather"}})";
  const Reply reply = Call(port(), "POST", "/v1/chat/completions", Chat(named));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json choice = reply.Json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["message"]["content"].is_null()) << choice;
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
  ExpectCall(choice["message"]["tool_calls"][0], "weather");

  const Reply streamed = Call(port(), "POST", "/v1/chat/completions", Chat(named + ",\"stream\":true"));
  std::vector<std::string> events = streamed.Events();
  ASSERT_EQ(events.back(), "[DONE]");
  events.pop_back();
  Json calls = Json::array();
  for (const std::string& event : events) {
    const Json delta = Json::parse(event)["choices"][0]["delta"];
    EXPECT_TRUE(!delta.contains("content") || delta["content"] == "") << event;
    for (const Json& call : delta.value("tool_calls", Json::array())) calls.push_back(call);
  }
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0]["index"], 0);
  EXPECT_EQ(calls[0]["function"], choice["message"]["tool_calls"][0]["function"]);
}

TEST_F(Grammars, SomeToolIsCalledWhereOneIsRequired) {
  for (int seed = 0; seed < 10; ++seed) {
    std::string body = Chat(R"("tool_choice":"required","parallel_tool_calls":false)");
    body.replace(body.find("\"seed\":5"), 8, "\"seed\":" + std::to_string(seed));
    const Reply reply = Call(port(), "POST", "/v1/chat/completions", body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json choice = reply.Json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    ExpectCall(choice["message"]["tool_calls"][0], nullptr);
  }
}

TEST_F(Grammars, AChatKeepsTheOrderOfItsSchema) {
  const Reply reply = Call(port(), "POST", "/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"a"}],"max_tokens":200,"seed":3,"response_format":
                              {"type":"json_schema","json_schema":{"name":"n","schema":)" +
                               std::string(kSchema) + "}}}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  ExpectOfSchema(reply.Json()["choices"][0]["message"]["content"]);
  EXPECT_EQ(Refusal("/v1/chat/completions", Chat(R"("tool_choice":"required","guided_regex":"a")")), "tool_choice");
}

}  // namespace
}  // namespace stoch::test
