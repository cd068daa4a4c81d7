// SPDX-License-Identifier: Apache-2.0
// Conversations as templates see them, and templates that do harm.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

// Letters, with a template of the test's choice.
class TemplateTokenizer : public LettersTokenizer {
 public:
  explicit TemplateTokenizer(std::string source) : source_(std::move(source)) {}
  std::string chat_template() const override { return source_; }

 private:
  const std::string source_;
};

class Templates : public ServerFixture {
 protected:
  void SetUp() override { STOCH_REQUIRE_JINJA(); }
  void TearDown() override { server_.reset(); }

  void Serve(const std::string& source) {
    server_.reset();
    chat_.reset();
    served_ = std::make_unique<TemplateTokenizer>(source);
    StartServer(*served_);
  }
  // The text as JSON keeps it in order, or the error's message.
  std::string Apply(const std::string& body) const {
    const Reply reply = Call(port(), "POST", "/apply-template", body);
    const Json answer = reply.Json();
    return reply.status == 200 ? answer["prompt"].get<std::string>() : answer["error"]["message"].get<std::string>();
  }
  Reply Say(const std::string& words) const {
    return Post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", words}}}}, {"max_tokens", 2}});
  }

  std::unique_ptr<TemplateTokenizer> served_;
};

TEST_F(Templates, SeeConversationsInOrder) {
  Serve("{{ tools | tojson }}|{{ messages | tojson }}|{{ z }}{{ add_generation_prompt }}");
  EXPECT_EQ(Apply(R"({"messages":[{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"role":"user",
                       "name":"Ann"}],
                      "tools":[{"type":"function","function":{"name":"f","a":{"z":1,"b":2}}}],
                      "chat_template_kwargs":{"z":[{"y":1,"x":null}]}})"),
            R"([{"type": "function", "function": {"name": "f", "a": {"z": 1, "b": 2}}}]|)"
            R"([{"content": "ab", "role": "user", "name": "Ann"}]|[{'y': 1, 'x': None}]True)");
  // Arguments of calls are objects, a missing answer is empty, and tools that are not to be called are not told.
  EXPECT_EQ(Apply(R"({"messages":[{"role":"developer","content":"a"},
                                  {"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"c","type":
                                   "function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]},
                                  {"role":"tool","content":null,"tool_call_id":"c"}],
                      "tools":[{"type":"function"}],"tool_choice":"none","add_generation_prompt":false})"),
            R"(null|[{"role": "system", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": )"
            R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]}, )"
            R"({"role": "tool", "content": "", "tool_call_id": "c"}]|False)");
  EXPECT_EQ(Apply(R"({"messages":[{"role":"assistant","content":"a","tool_calls":[{"function":{"arguments":"{"}}]}]})"),
            "messages[0].tool_calls[0].function.arguments: expected JSON, got something else at byte 2");
}

TEST_F(Templates, MayGoOnWithTheLastMessage) {
  Serve(
      "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif "
      "%}");
  const std::string turns = R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b "}])";
  EXPECT_EQ(Apply(turns + R"(,"continue_final_message":true})"), "<user>a</><assistant>b ");
  EXPECT_EQ(Apply(turns + "}"), "<user>a</><assistant>b </><a>");
  const Reply tokens = Call(port(), "POST", "/tokenize", turns + R"(,"continue_final_message":true})");
  EXPECT_EQ(tokens.Json()["count"], std::string("<user>a</><assistant>b ").size()) << tokens.body;
  EXPECT_EQ(Call(port(), "POST", "/tokenize", R"({"prompt":"ab"})").Json()["count"], 3);
}

TEST_F(Templates, ThatReadPartsGetParts) {
  Serve("{% for m in messages %}{% for part in m.content %}({{ part.text }}){% endfor %}{% endfor %}");
  EXPECT_EQ(Apply(R"({"messages":[{"role":"user","content":"a"}]})"), "(a)");
}

TEST_F(Templates, RefuseInTheirOwnWords) {
  Serve("{% if messages[0].role != 'user' %}{{ raise_exception('the user begins') }}{% endif %}a");
  const Reply reply =
      Post("/v1/chat/completions", {{"messages", {{{"role", "system"}, {"content", "x"}}}}, {"max_tokens", 2}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.Json()["error"]["message"], "the user begins");
  EXPECT_EQ(reply.Json()["error"]["param"], "messages");
  EXPECT_EQ(Say("b").status, 200);
}

TEST_F(Templates, MayHaveReasoningTakenApart) {
  server_options_.api.reasoning = serve::ReasoningFormat::kDeepSeekR1;
  Serve("{{ messages[0].content }}");
  Json body = {{"messages", {{{"role", "user"}, {"content", "b"}}}}, {"max_tokens", 12}, {"ignore_eos", true}};
  const Json whole = Post("/v1/chat/completions", body).Json()["choices"][0]["message"];
  EXPECT_EQ(whole["content"], "");
  ASSERT_TRUE(whole.contains("reasoning_content")) << whole;
  body["stream"] = true;
  std::string reasoning, content;
  for (const std::string& event : Post("/v1/chat/completions", body).Events()) {
    if (event == "[DONE]") continue;
    const Json delta = Json::parse(event)["choices"][0]["delta"];
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
  }
  EXPECT_EQ(reasoning, whole["reasoning_content"].get<std::string>());
  EXPECT_EQ(content, "");
}

TEST_F(Templates, AreMissingByName) {
  Serve("");
  const Json error = Say("a").Json()["error"];
  EXPECT_EQ(error["message"], "messages: the checkpoint has no chat template; --chat-template names one");
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
}

// Children of this process whose program is a python.
std::vector<pid_t> Helpers() {
  std::vector<pid_t> helpers;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t pid = 0; children >> pid;) {
      std::ifstream name("/proc/" + std::to_string(pid) + "/comm");
      std::string program;
      if (name >> program && program.starts_with("python")) helpers.push_back(pid);
    }
  }
  return helpers;
}

TEST_F(Templates, OutliveTheirHelper) {
  Serve("{{ messages[0].content }}");
  for (int i = 0; i < 3; ++i) {
    const std::vector<pid_t> helpers = Helpers();
    ASSERT_EQ(helpers.size(), 1u);
    kill(helpers[0], SIGKILL);
    EXPECT_EQ(Say("b").status, 200);
  }
  server_.reset();
  chat_.reset();
  EXPECT_TRUE(Helpers().empty());
}

// STOCH_CHAT_HARM times: each costs its request, and nothing else. Others are answered meanwhile.
TEST_F(Templates, ThatDoHarmCostOneRequest) {
  constexpr const char* kBad[] = {"loop", "memory", "text", "file", "process", "deep"};
  Serve(
      "{% macro deep(n) %}{{ deep(n + 1) }}{% endmacro %}{% set c = messages[0].content %}"
      "{% if c == 'loop' %}{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"
      "{% elif c == 'memory' %}{{ ('a' * 999999999) | length }}{% elif c == 'text' %}{{ 'a' * 9999999 }}"
      "{% elif c == 'file' %}{{ ''.__class__.__mro__[1].__subclasses__() }}"
      "{% elif c == 'process' %}{{ cycler.__init__.__globals__.os.fork() }}"
      "{% elif c == 'deep' %}{{ deep(0) }}{% endif %}{{ c }}");
  std::atomic<bool> done = false;
  std::atomic<int> answered = 0, refused = 0;
  std::atomic<int64_t> longest_ms = 0;
  std::thread load([&] {
    while (!done) {
      const auto begin = std::chrono::steady_clock::now();
      (Post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status == 200 ? answered : refused)++;
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
      longest_ms = std::max(longest_ms.load(), static_cast<int64_t>(took.count()));
    }
  });
  const int rounds = NumberFromEnvironment("STOCH_CHAT_HARM", static_cast<int>(std::size(kBad)));
  for (int i = 0; i < rounds; ++i) {
    const char* bad = kBad[static_cast<size_t>(i) % std::size(kBad)];
    const Reply reply = Say(bad);
    EXPECT_EQ(reply.status, 400) << bad << ": " << reply.body;
    EXPECT_LT(reply.body.size(), 700u) << bad;
    EXPECT_EQ(Say("good").status, 200) << "after " << bad;
    EXPECT_LE(Helpers().size(), 1u) << bad;
  }
  done = true;
  load.join();
  EXPECT_EQ(refused, 0);
  EXPECT_GT(answered, rounds);
  RecordProperty("longest_completion_ms", std::to_string(longest_ms));
}

// What goes on until its time is over, for as long as a template may take.
constexpr const char* kSlow =
    "{% if documents %}{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endif %}a";

std::string ChatWithDocuments(size_t bytes) {
  const std::string body = Json({{"messages", {{{"role", "user"}, {"content", "a"}}}},
                                 {"documents", {{{"text", std::string(bytes, 'x')}}}},
                                 {"max_tokens", 1}})
                               .dump();
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

// Conversations that wait for their prompts are bodies still.
TEST_F(Templates, ConversationsThatWaitHaveABudget) {
  server_options_.http.max_bodies_bytes = 10 << 20;
  Serve(kSlow);
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::vector<int> statuses;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    try {
      clients.back()->SendRaw(ChatWithDocuments(4 << 20));
    } catch (const std::exception&) {  // refused in the middle of the body
    }
  }
  for (const auto& client : clients) {
    try {
      statuses.push_back(client->Receive().status);
    } catch (const std::exception&) {
      statuses.push_back(503);
    }
  }
  EXPECT_GE(std::count(statuses.begin(), statuses.end(), 503), 1);
  EXPECT_GE(std::count(statuses.begin(), statuses.end(), 400), 1);  // "takes too long"
  EXPECT_EQ(Say("b").status, 200);
}

TEST_F(Templates, MayBeWaitedForWhenTheServerGoes) {
  Serve(kSlow);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    clients.back()->SendRaw(ChatWithDocuments(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server_.reset();
  int answered = 0;
  for (const auto& client : clients) {
    try {
      answered += client->ReadToEnd().empty() ? 0 : 1;
    } catch (const std::exception&) {  // cut off
    }
  }
  EXPECT_LE(answered, 1);  // the one whose turn it was
}

}  // namespace
}  // namespace stoch::test
