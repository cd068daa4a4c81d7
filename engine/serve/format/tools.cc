// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/tools.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/serve/http/request_error.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"

namespace stoch::serve {
namespace {

using Ordered = OrderedJson;

constexpr int kBadRequest = 400;
constexpr int64_t kMaxTools = 128;
constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";
constexpr std::string_view kSpaces = " \t\r\n";

[[noreturn]] void Reject(const std::string& field, const std::string& what) {
  throw RequestError(kBadRequest, field, field + ": " + what);
}

std::string Written(const Ordered& value) { return value.dump(-1, ' ', false, Ordered::error_handler_t::replace); }

std::string Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpaces) + 1 - first));
}

// "" for what is none.
std::string NameOf(const Ordered& name) { return name.is_string() ? name.get<std::string>() : ""; }

struct Function {
  std::string name;
  Ordered parameters;
};

std::vector<Function> Functions(const Ordered& tools) {
  if (!tools.is_array()) ThrowWrongType("tools", "a list of objects", tools);
  if (static_cast<int64_t>(tools.size()) > kMaxTools) {
    Reject("tools", "has " + std::to_string(tools.size()) + " tools; allowed are " + std::to_string(kMaxTools));
  }
  std::vector<Function> functions;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    const auto function = tools[i].is_object() ? tools[i].find("function") : tools[i].end();
    if (!tools[i].is_object() || function == tools[i].end() || !function->is_object()) {
      Reject(where + ".function", "expected an object");
    }
    const Ordered name = function->value("name", Ordered());
    if (NameOf(name).empty()) Reject(where + ".function.name", "expected a string");
    Ordered parameters = function->value("parameters", Ordered());
    if (parameters.is_null()) parameters = {{"type", "object"}, {"properties", Ordered::object()}};
    if (!parameters.is_object()) ThrowWrongType(where + ".function.parameters", "a JSON schema", parameters);
    functions.push_back({name.get<std::string>(), std::move(parameters)});
  }
  return functions;
}

// Calls and nothing else, in the form of the model; where it has none, in that of Hermes.
GrammarSpec GrammarOf(const std::vector<Function>& functions, ToolForm form, bool one) {
  const bool is_llama = form == ToolForm::kLlama3;
  Ordered tags = Ordered::array();
  for (const Function& function : functions) {
    const std::string head =
        "{\"name\": " + Written(function.name) + ", \"" + (is_llama ? "parameters" : "arguments") + "\": ";
    tags.push_back(
        {{"type", "tag"},
         {"begin", is_llama ? head : std::string(kBegin) + "\n" + head},
         {"content", {{"type", "json_schema"}, {"json_schema", function.parameters}, {"max_whitespace_cnt", 1}}},
         {"end", is_llama ? "}" : "}\n" + std::string(kEnd)}});
  }
  const Ordered calls = {{"type", "tags_with_separator"},
                         {"tags", std::move(tags)},
                         {"separator", "\n"},
                         {"at_least_one", true},
                         {"stop_after_first", one || is_llama}};
  GrammarSpec grammar{GrammarSpec::Kind::kStructuralTag, Written({{"type", "structural_tag"}, {"format", calls}})};
  try {
    Validate(grammar);
  } catch (const InvalidInput& error) {
    Reject("tools", error.what());
  }
  return grammar;
}

// The function that tool_choice names.
std::string NamedFunction(const SortedJson& choice) {
  JsonFields fields(choice, "tool_choice.");
  const SortedJson* function = fields.Find("function");
  if (fields.String("type").value_or("function") != "function" || function == nullptr) {
    Reject("tool_choice", R"(expected none, auto, required or {"type": "function", "function": {"name": ...}})");
  }
  const auto name = JsonFields(*function, "tool_choice.function.").String("name");
  if (!name) Reject("tool_choice.function.name", "is missing; expected a string");
  return *name;
}

// A call of either form; false where it is none.
bool ReadCall(std::string_view text, ToolCall* call) {
  constexpr int kDepth = 32;
  const std::string trimmed = Trimmed(text);
  if (!trimmed.starts_with('{') || !trimmed.ends_with('}')) return false;
  try {
    Ordered json = ConsumeOrderedJson(trimmed, "a call", kDepth, kMaxJsonFileValues, INT64_MAX);
    const Ordered name = json.value("name", Ordered());
    const auto given = json.contains("arguments") ? json.find("arguments") : json.find("parameters");
    call->name = NameOf(name);
    if (call->name.empty()) return false;
    call->arguments = given == json.end() ? "{}" : given->is_string() ? given->get<std::string>() : Written(*given);
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

// Characters at the end of `text` that may be the beginning of `tag`.
size_t MayBegin(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

ToolForm ToolFormNamed(std::string_view name) {
  const auto* found = std::find(std::begin(kToolForms), std::end(kToolForms), name);
  return static_cast<ToolForm>(found - std::begin(kToolForms));
}

ToolForm ToolFormOf(std::string_view chat_template) {
  const auto has = [&](std::string_view word) { return chat_template.find(word) != std::string_view::npos; };
  if (has(kBegin)) return ToolForm::kHermes;
  return has("<|python_tag|>") || (has("ipython") && has("\"parameters\"")) ? ToolForm::kLlama3 : ToolForm::kNone;
}

AskedTools ReadTools(const Ordered& tools, JsonFields& fields, ToolForm form) {
  const bool may_be_many = fields.Bool("parallel_tool_calls", true);
  const SortedJson* choice = fields.Find("tool_choice");
  const bool has_tools = !tools.is_null() && !(tools.is_array() && tools.empty());
  AskedTools asked;
  if (choice != nullptr && *choice == "none") return asked;
  const bool is_forced = choice != nullptr && *choice != "auto";
  if (is_forced && *choice != "required" && !choice->is_object()) {
    Reject("tool_choice", R"(expected none, auto, required or {"type": "function", "function": {"name": ...}})");
  }
  if (is_forced && !has_tools) Reject("tool_choice", "needs tools to choose among");
  if (!has_tools) return asked;
  asked.form = form;
  if (!is_forced) return asked;
  std::vector<Function> functions = Functions(tools);
  if (choice->is_object()) {
    const std::string name = NamedFunction(*choice);
    std::erase_if(functions, [&](const Function& function) { return function.name != name; });
    if (functions.empty()) Reject("tool_choice.function.name", "is none of the tools");
    asked.is_named = true;
  }
  if (form == ToolForm::kNone) asked.form = ToolForm::kHermes;
  asked.grammar = GrammarOf(functions, asked.form, asked.is_named || !may_be_many);
  return asked;
}

bool ToolCallSplitter::Take(std::string_view text, Piece* piece) {
  ToolCall call;
  if (!ReadCall(text, &call)) return false;
  call.index = calls_++;
  after_call_ = true;
  piece->calls.push_back(std::move(call));
  return true;
}

// Content goes out up to what may begin a call; spaces around calls belong to neither.
void ToolCallSplitter::PushHermes(bool last, Piece* piece) {
  for (;;) {
    if (!inside_) {
      const size_t begin = held_.find(kBegin);
      size_t certain = begin == std::string::npos ? held_.size() - MayBegin(held_, kBegin) : begin;
      if (last && begin == std::string::npos) certain = held_.size();
      std::string content = held_.substr(0, certain);
      // Spaces at the end are held back until the text after them says whether they are content.
      const size_t end = last && begin == std::string::npos ? content.size() : content.find_last_not_of(kSpaces) + 1;
      const bool drops = begin != std::string::npos;
      held_.erase(0, drops ? certain : end);
      content.resize(end);
      if (after_call_) content.erase(0, std::min(content.size(), content.find_first_not_of(kSpaces)));
      if (!content.empty()) after_call_ = false;
      piece->content += content;
      if (begin == std::string::npos) return;
      inside_ = true;
    }
    const size_t end = held_.find(kEnd);
    if (end == std::string::npos && !last) return;
    const size_t inner = end == std::string::npos ? held_.size() : end;
    const size_t whole = std::min(held_.size(), inner + kEnd.size());
    inside_ = false;
    if (end == std::string::npos || !Take(held_.substr(kBegin.size(), inner - kBegin.size()), piece)) {
      piece->content += held_.substr(0, whole);
      after_call_ = false;
    }
    held_.erase(0, whole);
    if (held_.empty()) return;
  }
}

ToolCallSplitter::Piece ToolCallSplitter::Push(std::string_view text) {
  Piece piece;
  if (form_ == ToolForm::kLlama3) {
    // The first character that is no space says whether the answer may be a call.
    held_ += text;
    const size_t first = held_.find_first_not_of(kSpaces);
    if (first == std::string::npos || (!begun_ && held_[first] == '{')) return piece;
    begun_ = true;
    piece.content = std::exchange(held_, {});
    return piece;
  }
  held_ += text;
  PushHermes(false, &piece);
  return piece;
}

ToolCallSplitter::Piece ToolCallSplitter::Finish() {
  Piece piece;
  if (form_ == ToolForm::kLlama3) {
    if (begun_ || !Take(held_, &piece)) piece.content = std::exchange(held_, {});
    return piece;
  }
  PushHermes(true, &piece);
  return piece;
}

}  // namespace stoch::serve
