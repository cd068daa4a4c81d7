// SPDX-License-Identifier: Apache-2.0
// Tools of a chat: what a request says of them, and the calls in an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/grammar.h"
#include "engine/serve/format/json_fields.h"

namespace stoch::serve {

// How a model writes calls.
enum class ToolForm : uint8_t {
  kNone,    // they are part of the answer
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, of Hermes and Qwen
  kLlama3,  // {"name": ..., "parameters": {...}} is the whole answer
};
inline constexpr const char* kToolForms[] = {"none", "hermes", "llama3_json"};  // as users name them
// Requires: one of kToolForms.
ToolForm ToolFormNamed(std::string_view name);
// The form that a chat template shows the model.
ToolForm ToolFormOf(std::string_view chat_template);

// A request's tools and tool_choice, as read.
struct AskedTools {
  ToolForm form = ToolForm::kNone;  // of calls to take out of the answer
  bool is_named = false;            // one function was named: a call of it ends with "stop", as in the OpenAI API
  GrammarSpec grammar;              // of an answer that has to be calls
};
// tools: of the request, as it came. form: of the model.
// Errors: RequestError(400) naming the field, for a tool_choice that the tools do not have.
AskedTools ReadTools(const OrderedJson& tools, JsonFields& fields, ToolForm form);

struct ToolCall {
  size_t index = 0;  // in its answer
  std::string name;
  std::string arguments;  // JSON
};

// Takes calls out of one answer, piece by piece; the pieces depend on nothing but the text so far. A call is given out once
// it is complete. What looks like a call and is none is content.
class ToolCallSplitter {
 public:
  struct Piece {
    std::string content;
    std::vector<ToolCall> calls;
  };

  explicit ToolCallSplitter(ToolForm form) : form_(form) {}
  Piece Push(std::string_view text);
  Piece Finish();
  size_t calls() const { return calls_; }

 private:
  void PushHermes(bool last, Piece* piece);
  bool Take(std::string_view text, Piece* piece);

  const ToolForm form_;
  std::string held_;     // not given out
  bool inside_ = false;  // held_ begins with what may be a call
  bool begun_ = false;   // it is content, of an answer that would have been one call
  bool after_call_ = false;
  size_t calls_ = 0;
};

}  // namespace stoch::serve
