// SPDX-License-Identifier: Apache-2.0
// Chat completions.

#include <algorithm>
#include <atomic>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

// Letters that speak ChatML.
class ChatTokenizer : public LettersTokenizer {
 public:
  explicit ChatTokenizer(int32_t im_end = 94) : im_end_(im_end) {}
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids = LettersTokenizer::Encode("", options);
    while (!text.empty()) {
      const std::string_view special = text.starts_with(kStart) ? kStart : text.starts_with(kEnd) ? kEnd : "";
      if (options.parse_special && !special.empty()) {
        ids.push_back(special == kStart ? 93 : im_end_);
        text.remove_prefix(special.size());
        continue;
      }
      ids.push_back((text[0] == '\n' ? '|' : text[0]) - ' ');  // the letters have no line break
      text.remove_prefix(1);
    }
    return ids;
  }
  std::optional<int32_t> FindSpecial(std::string_view written) const override {
    if (written == "<|im_start|>") return 93;
    if (written == "<|im_end|>") return im_end_;
    return std::nullopt;
  }
  std::string chat_template() const override {
    return "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
           "{% endfor %}{{ '<|im_start|>assistant\\n' }}";
  }

 private:
  static constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>";
  int32_t im_end_;
};

class Chats : public ServerFixture {
 protected:
  void SetUp() override {
    STOCH_REQUIRE_JINJA();
    Listen();
    engine_ = OpenEngine();
    Attach(&chat_tokenizer_);
  }

  GenerateResult Reference(int64_t max_tokens, uint64_t choice = 0) {
    if (reference_ == nullptr) reference_ = OpenEngine();
    GenerateRequest request;
    request.prompt = chat_tokenizer_.Encode(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        {.add_bos = false, .parse_special = true});
    request.stop_ids = {2, 94};
    request.max_tokens = max_tokens;
    request.sampling.temperature = 1;
    request.sampling.seed = 4;
    request.sampling.choice = choice;
    request.top_logprobs = 2;
    return Generate(*reference_, &chat_tokenizer_, request);
  }

  ChatTokenizer chat_tokenizer_;
  std::unique_ptr<Engine> reference_;
};

const Json kMessages = {
    {{"role", "system"}, {"content", "be brief"}},
    {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "h"}}, {{"type", "text"}, {"text", "i"}}}}}};

TEST_F(Chats, GivesTheBitsOfGenerateAlone) {
  const Json body = {{"model", "tiny"},  {"messages", kMessages}, {"max_completion_tokens", 15}, {"n", 2}, {"seed", 4},
                     {"logprobs", true}, {"top_logprobs", 2}};
  const Reply reply = Post("/v1/chat/completions", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  Json both = body;
  both["max_tokens"] = 15;
  EXPECT_EQ(Post("/v1/chat/completions", both).Json()["choices"], reply.Json()["choices"]);
  both["max_tokens"] = 16;
  const Reply differing = Post("/v1/chat/completions", both);
  EXPECT_EQ(differing.status, 400);
  EXPECT_NE(differing.body.find("max_completion_tokens: is 15, and max_tokens, its older name, is 16"),
            std::string::npos)
      << differing.body;
  const Json answer = reply.Json();
  EXPECT_EQ(answer["object"], "chat.completion");
  ASSERT_EQ(answer["choices"].size(), 2u);
  for (uint64_t i = 0; i < 2; ++i) {
    const GenerateResult expected = Reference(15, i);
    const Json& choice = answer["choices"][i];
    EXPECT_EQ(choice["message"], Json({{"role", "assistant"}, {"content", expected.text}}));
    EXPECT_EQ(choice["finish_reason"], FinishReasonName(expected.finish_reason));
    const Json& content = choice["logprobs"]["content"];
    ASSERT_EQ(content.size(), expected.ids.size());
    for (size_t t = 0; t < content.size(); ++t) {
      EXPECT_EQ(content[t]["logprob"], expected.logprobs[t].logprob);
      // JSON has no half characters; "bytes" has them.
      const std::string text = chat_tokenizer_.TokenText(expected.ids[t]);
      EXPECT_EQ(content[t]["token"], Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)));
      EXPECT_EQ(content[t]["bytes"].size(), chat_tokenizer_.TokenBytes(expected.ids[t]).size());
      ASSERT_EQ(content[t]["top_logprobs"].size(), 2u);
      EXPECT_EQ(content[t]["top_logprobs"][0]["logprob"], expected.logprobs[t].top[0].second);
    }
  }
}

class ChatBeyondTheModel : public ServerFixture {
 protected:
  void SetUp() override {
    STOCH_REQUIRE_JINJA();
    Listen();
    engine_ = OpenEngine();
    Attach(&tokenizer_);
  }

  ChatTokenizer tokenizer_{100};  // the model has tokens 0..95
};

TEST_F(ChatBeyondTheModel, IsRefused) {
  const Reply reply = Post("/v1/chat/completions", {{"messages", kMessages}, {"max_tokens", 2}});
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_NE(reply.body.find("messages: becomes token 100; the model has none"), std::string::npos) << reply.body;
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "hi"}, {"max_tokens", 2}}).status, 200) << "and serving goes on";
}

TEST_F(Chats, StreamsRoleThenTextThenTheEnd) {
  Json body = {{"messages", kMessages},
               {"max_tokens", 15},
               {"seed", 4},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  const Reply reply = Post("/v1/chat/completions", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::vector<std::string> events = reply.Events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text, finish;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    const Json& choice = chunk["choices"][0];
    EXPECT_EQ(choice["delta"].count("role"), i == 0 ? 1u : 0u);
    text += choice["delta"].value("content", "");
    EXPECT_EQ(finish, "");
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  const GenerateResult expected = Reference(15);
  EXPECT_EQ(text, expected.text);
  EXPECT_EQ(finish, FinishReasonName(expected.finish_reason));
  EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"]["completion_tokens"], expected.ids.size());
}

TEST_F(Chats, EndsWithTheTurn) {
  const Json body = {{"messages", kMessages}, {"max_tokens", 15}, {"logit_bias", {{"94", 1000}}}};
  const Json answer = Post("/v1/chat/completions", body).Json();
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
}

TEST_F(Chats, GoesUpToTheContextUnlessTold) {
  const Json body = {{"messages", kMessages}, {"ignore_eos", true}, {"logit_bias", {{"94", 3}, {"2", 3}}}};
  EXPECT_EQ(Post("/v1/chat/completions", body).Json()["usage"]["total_tokens"], kContext);
}

TEST_F(Chats, RefusesMessagesWithoutARole) {
  const Reply reply = Post("/v1/chat/completions", {{"messages", {{{"role", ""}, {"content", "x"}}}}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.Json()["error"]["message"].get<std::string>().find("messages[0].role"), std::string::npos);
  EXPECT_EQ(Post("/v1/chat/completions", {{"messages", kMessages}, {"top_logprobs", 3}}).Json()["error"]["param"],
            "top_logprobs");
  EXPECT_EQ(Post("/v1/chat/completions", {{"messages", kMessages}, {"max_tokens", 0}}).Json()["error"]["param"],
            "max_tokens");
}

// What clients send along with every conversation, and the roles of newer ones.
TEST_F(Chats, TakesWhatChangesNothing) {
  const auto answer = [this](const Json& messages, const Json& more = Json::object()) {
    Json body = {{"messages", messages}, {"max_tokens", 4}, {"seed", 1}};
    body.update(more);
    const Reply reply = Post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 200) << body << "\n" << reply.body;
    return reply.status == 200 ? reply.Json()["choices"] : Json();
  };
  const Json expected = answer(kMessages);
  EXPECT_EQ(answer(kMessages, {{"tools", Json::array()}, {"tool_choice", "none"}}), expected);
  EXPECT_EQ(answer(kMessages, {{"tools", nullptr}, {"parallel_tool_calls", false}, {"store", false}}), expected);
  Json developer = kMessages;
  developer[0]["role"] = "developer";
  EXPECT_EQ(answer(developer), expected);

  Json turns = kMessages;
  turns.push_back({{"role", "assistant"}, {"content", ""}});
  turns.push_back({{"role", "tool"}, {"content", ""}, {"tool_call_id", "call_1"}});
  const Json with_tools = answer(turns);
  turns[2] = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array()}, {"refusal", nullptr}};
  turns[3]["content"] = nullptr;
  EXPECT_EQ(answer(turns), with_tools);
}

TEST_F(Chats, RefusesFieldsInsideByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"messages": [{"role": "user", "content": null}]})", "messages[0].content"},
      {R"({"messages": [{"role": "assistant"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages": [{"role": "user", "content": "a", "colour": 1}]})", "messages[0].colour"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "size": 1}]}]})",
       "messages[0].content[0].size"},
      {R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": []}})",
       "chat_template_kwargs.messages"},
      {R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"enable_thinking": 1}})",
       "chat_template_kwargs.enable_thinking"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]})", "tools"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})", "tool_choice"},
      {R"({"messages": [{"role": "user", "content": "a"}], "documents": [{"text": "b"}]})", "documents"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": true,
           "continue_final_message": true})",
       "continue_final_message"},
      {R"({"messages": [{"role": "user", "content": "a"}], "stream": true, "stream_options": {"usage": true}})",
       "stream_options.usage"},
  };
  for (const auto& [body, param] : cases) {
    const Reply reply = Post("/v1/chat/completions", Json::parse(body));
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.Json()["error"]["param"], param) << reply.body;
  }
}

// A tokenizer that says its template once.
class ForgetfulTokenizer : public ChatTokenizer {
 public:
  std::string chat_template() const override { return forgotten ? "" : ChatTokenizer::chat_template(); }
  std::atomic<bool> forgotten = false;
};

// What kind of template it is, the server finds when it gets the model, and no request again.
class ForgottenTemplate : public ServerFixture {
 protected:
  void SetUp() override {
    STOCH_REQUIRE_JINJA();
    StartServer(tokenizer_);
  }
  void TearDown() override { server_.reset(); }
  ForgetfulTokenizer tokenizer_;
};

TEST_F(ForgottenTemplate, WasReadWhenTheModelCame) {
  const Json body = {{"messages", kMessages}, {"max_tokens", 5}, {"seed", 1}};
  const Json answer = Post("/v1/chat/completions", body).Json();
  ASSERT_EQ(answer["choices"].size(), 1u) << answer;
  tokenizer_.forgotten = true;
  EXPECT_EQ(Post("/v1/chat/completions", body).Json()["choices"], answer["choices"]);
}

// Chats that name no limit run side by side, though all of their contexts would not fit in the cache.
class ChatsWithoutALimit : public Chats {
 protected:
  void SetUp() override {
    engine_options_.max_sequences = 8;
    engine_options_.kv_tokens = 15 * kKvPageTokens;  // a context is two pages
    before_attention_ = [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    Chats::SetUp();
  }
};

TEST_F(ChatsWithoutALimit, AllRunAtOnce) {
  const Json body = {{"messages", kMessages}, {"ignore_eos", true}, {"temperature", 0}};
  std::vector<std::thread> clients;
  std::vector<Json> answers(8);
  for (Json& answer : answers) {
    clients.emplace_back([&] { answer = Post("/v1/chat/completions", body).Json(); });
  }
  EXPECT_TRUE(Eventually([this] { return Metric("stoch_requests_running") == 8; }));
  for (std::thread& client : clients) client.join();
  for (const Json& answer : answers) {
    EXPECT_EQ(answer["choices"], answers[0]["choices"]);
    EXPECT_EQ(answer["usage"]["total_tokens"], kContext);
  }
}

}  // namespace
}  // namespace stoch::test
