// SPDX-License-Identifier: Apache-2.0
// Calls taken out of answers: the same whatever pieces a text comes in.
#include "engine/serve/format/tools.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/serve/http/request_error.h"

namespace stoch::test {
namespace {

using serve::ToolCallSplitter;
using serve::ToolForm;
using Ordered = OrderedJson;

std::string Split(ToolForm form, std::string_view text, size_t piece) {
  ToolCallSplitter splitter(form);
  std::string content, calls;
  size_t count = 0;
  const auto add = [&](const ToolCallSplitter::Piece& part) {
    content += part.content;
    for (const serve::ToolCall& call : part.calls) {
      EXPECT_EQ(call.index, count++);
      calls += "|" + call.name + call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) add(splitter.Push(text.substr(at, piece)));
  add(splitter.Finish());
  EXPECT_EQ(splitter.calls(), count);
  return content + calls;
}

TEST(ToolCalls, AreTakenOutAlikeInAnyPieces) {
  constexpr auto kHermes = ToolForm::kHermes, kLlama = ToolForm::kLlama3;
  const struct {
    ToolForm form;
    std::string_view text, expected;
  } cases[] = {
      {kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": [2]}}\n</tool_call>",
       "|f{\"z\":1,\"a\":[2]}"},
      {kHermes,
       "I look. \n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
       "<tool_call>{\"name\": \"g\"}</tool_call>\n",
       "I look.|f{}|g{}"},
      {kHermes, "a < b <tool", "a < b <tool"},
      {kHermes, "no call \n", "no call \n"},
      {kHermes, "", ""},
      {kHermes, "<tool_call>not JSON</tool_call> text", "<tool_call>not JSON</tool_call> text"},
      {kHermes, "<tool_call>{\"name\": \"f\", \"argum", "<tool_call>{\"name\": \"f\", \"argum"},
      {kHermes, "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>"},
      {kLlama, " {\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}", "|f{\"a\":\"}\"}"},
      {kLlama, "{\"name\": \"f\", \"parameters\": {\"a\"", "{\"name\": \"f\", \"parameters\": {\"a\""},
      {kLlama, "It is {\"name\": \"f\"}", "It is {\"name\": \"f\"}"},
      {kLlama, "  ", "  "},
  };
  for (const auto& [form, text, expected] : cases) {
    for (size_t piece = 1; piece <= text.size() + 1; ++piece) {
      EXPECT_EQ(Split(form, text, piece), expected) << text << " in pieces of " << piece;
    }
  }
}

TEST(ToolCalls, HaveTheFormOfTheTemplate) {
  EXPECT_EQ(serve::ToolFormOf("... return within <tool_call></tool_call> ..."), ToolForm::kHermes);
  EXPECT_EQ(serve::ToolFormOf("{{- '<|python_tag|>' }}"), ToolForm::kLlama3);
  EXPECT_EQ(serve::ToolFormOf("{{ messages }}"), ToolForm::kNone);
  EXPECT_EQ(serve::ToolFormNamed("llama3_json"), ToolForm::kLlama3);
}

serve::AskedTools Read(const char* tools, const char* body) {
  const auto json = SortedJson::parse(body);
  serve::JsonFields fields(json);
  return serve::ReadTools(Ordered::parse(tools), fields, ToolForm::kNone);
}

std::string Refused(const char* tools, const char* body) {
  try {
    (void)Read(tools, body);
  } catch (const serve::RequestError& error) {
    return error.param();
  }
  return "nothing";
}

TEST(ToolCalls, AreAskedFor) {
  constexpr const char* kTools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
                                     {"type":"function","function":{"name":"g"}}])";
  EXPECT_TRUE(Read(kTools, "{}").grammar.empty());
  EXPECT_TRUE(Read(kTools, R"({"tool_choice":"auto"})").grammar.empty());
  EXPECT_TRUE(Read("null", "{}").grammar.empty());
  const serve::AskedTools required = Read(kTools, R"({"tool_choice":"required"})");
  EXPECT_EQ(required.form, ToolForm::kHermes);
  EXPECT_FALSE(required.is_named);
  EXPECT_NE(required.grammar.text.find("\"stop_after_first\":false"), std::string::npos);
  const serve::AskedTools named = Read(kTools, R"({"tool_choice":{"type":"function","function":{"name":"g"}}})");
  EXPECT_TRUE(named.is_named);
  EXPECT_EQ(named.grammar.text.find("\\\"f\\\""), std::string::npos) << named.grammar.text;
  EXPECT_NE(named.grammar.text.find("\"stop_after_first\":true"), std::string::npos);

  EXPECT_EQ(Refused(kTools, R"({"tool_choice":"sometimes"})"), "tool_choice");
  EXPECT_EQ(Refused("null", R"({"tool_choice":"required"})"), "tool_choice");
  EXPECT_EQ(Refused("[]", R"({"tool_choice":"required"})"), "tool_choice");
  EXPECT_EQ(Refused(kTools, R"({"tool_choice":{"type":"function","function":{"name":"h"}}})"),
            "tool_choice.function.name");
  EXPECT_EQ(Refused(kTools, R"({"tool_choice":{"type":"function"}})"), "tool_choice");
  EXPECT_EQ(Refused(R"([{"type":"function"}])", R"({"tool_choice":"required"})"), "tools[0].function");
  EXPECT_EQ(Refused(R"([{"function":{"name":""}}])", R"({"tool_choice":"required"})"), "tools[0].function.name");
  EXPECT_EQ(Refused(R"([{"function":{"name":"f","parameters":5}}])", R"({"tool_choice":"required"})"),
            "tools[0].function.parameters");
}

}  // namespace
}  // namespace stoch::test
