// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/messages.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/serve/format/foreign_fields.h"
#include "engine/serve/http/request_error.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"

namespace stoch::serve {
namespace {

using Json = SortedJson;
using Ordered = OrderedJson;

constexpr int kBadRequest = 400;
constexpr size_t kMaxDateBytes = 64;
constexpr size_t kMaxRoleBytes = 64;

std::string At(const std::string& name, size_t i) { return name + "[" + std::to_string(i) + "]"; }

[[noreturn]] void Reject(const std::string& param, const std::string& what) {
  throw RequestError(kBadRequest, param, param + ": " + what);
}

// A field of a conversation; null where it is absent.
Ordered Take(Ordered* taken, JsonFields& fields, const char* name) {
  fields.Find(name);
  const auto found = taken->find(name);
  return found == taken->end() ? Ordered() : std::move(*found);
}

// Text parts joined.
std::string JoinParts(const Ordered& parts, const std::string& param) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json entry = parts[i];
    JsonFields part(entry, At(param, i) + ".");
    const std::string type = part.String("type").value_or("text");
    if (type != "text") Reject(At(param, i) + ".type", "expected text, the only kind this model reads");
    const auto piece = part.String("text");
    if (!piece) Reject(At(param, i) + ".text", "is missing; expected a string");
    RefuseForeignFields(part, FieldPlace::kContentPart);
    text += *piece;
  }
  return text;
}

Ordered ReadContent(const Ordered& content, const std::string& param, const Chat* chat) {
  if (!content.is_string() && !content.is_array()) ThrowWrongType(param, "a string or a list of text parts", content);
  std::string text = content.is_string() ? content.get<std::string>() : JoinParts(content, param);
  if (chat == nullptr || !chat->wants_parts()) return text;
  const Ordered part = {{"type", "text"}, {"text", std::move(text)}};
  return Ordered::array({part});
}

// Templates read arguments as objects, the OpenAI API writes them as JSON.
void ReadArguments(const std::string& param, Ordered* function) {
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || !arguments->is_string()) return;
  const auto text = arguments->get<std::string>();
  if (text.empty()) {
    *arguments = Ordered::object();
    return;
  }
  try {
    constexpr int kDepth = 16;
    *arguments = ConsumeOrderedJson(text, param, kDepth, kMaxJsonFileValues, INT64_MAX);
  } catch (const InvalidInput& error) {
    throw RequestError(kBadRequest, param, error.what());
  }
}

Ordered ReadToolCalls(Ordered calls, const std::string& param) {
  if (!calls.is_array()) ThrowWrongType(param, "a list of calls", calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].is_object()) ThrowWrongType(At(param, i), "an object", calls[i]);
    const auto function = calls[i].find("function");
    if (function == calls[i].end() || !function->is_object()) Reject(At(param, i) + ".function", "expected an object");
    ReadArguments(At(param, i) + ".function.arguments", &*function);
  }
  return calls;
}

std::string ReadRole(JsonFields& message, const Chat* chat) {
  const auto role = message.String("role");
  const std::string param = message.Path("role");
  if (!role) Reject(param, "is missing; expected system, user or assistant");
  if (role->empty() || role->size() > kMaxRoleBytes) {
    Reject(param, "expected 1.." + std::to_string(kMaxRoleBytes) + " bytes, such as user");
  }
  return *role == "developer" && !(chat != nullptr && chat->Mentions("developer")) ? "system" : *role;
}

Ordered ReadMessage(Ordered given, const std::string& where, const Chat* chat) {
  const Json plain = given;
  JsonFields message(plain, where);
  const std::string role = ReadRole(message, chat);
  // An answer that only calls tools has none.
  const bool may_be_null = message.IsNull("content") && (role == "assistant" || role == "tool");
  if (message.Find("content") == nullptr && !may_be_null) Reject(where + "content", "is missing; expected a string");
  for (const char* text : {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"}) message.String(text);
  message.Find("tool_calls");
  RefuseForeignFields(message, FieldPlace::kMessage);
  Ordered read = Ordered::object();
  for (auto& [name, value] : given.items()) {
    if (name == "role") {
      read["role"] = role;
    } else if (name == "content") {
      read["content"] = value.is_null() ? ReadContent("", "", chat) : ReadContent(value, where + "content", chat);
    } else if (value.is_null() || !message.asked_for().contains(name)) {
      continue;
    } else if (name == "tool_calls") {
      Ordered calls = ReadToolCalls(std::move(value), where + "tool_calls");
      if (!calls.empty()) read["tool_calls"] = std::move(calls);
    } else {
      read[name] = std::move(value);
    }
  }
  return read;
}

Ordered ReadMessages(Ordered given, const Chat* chat) {
  if (given.is_null()) Reject("messages", "is missing; expected a list of messages");
  if (!given.is_array()) ThrowWrongType("messages", "a list of messages", given);
  if (given.empty()) Reject("messages", "expected at least one, got none");
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].is_object()) ThrowWrongType(At("messages", i), "an object", given[i]);
    given[i] = ReadMessage(std::move(given[i]), At("messages", i) + ".", chat);
  }
  return given;
}

// Objects that the template is told of; null for none.
Ordered ReadObjects(Ordered given, const char* name, const Chat* chat) {
  if (given.is_null()) return given;
  if (!given.is_array()) ThrowWrongType(name, "a list of objects", given);
  if (given.empty()) return nullptr;
  if (!chat->Mentions(name)) Reject(name, "the chat template of this model does not read them");
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].is_object()) ThrowWrongType(At(name, i), "an object", given[i]);
  }
  return given;
}

void CheckDate(const Json& kwargs) {
  JsonFields fields(kwargs, "chat_template_kwargs.");
  fields.Bool("enable_thinking", true);
  const auto date = fields.String("date_string");
  if (!date) return;
  const bool plain = std::none_of(date->begin(), date->end(), [](char c) { return static_cast<uint8_t>(c) < ' '; });
  if (date->empty() || date->size() > kMaxDateBytes || !plain) {
    Reject("chat_template_kwargs.date_string", "expected a date such as 26 Jul 2024, on one line");
  }
}

Ordered ReadKwargs(Ordered given) {
  if (given.is_null()) return Ordered::object();
  if (!given.is_object()) ThrowWrongType("chat_template_kwargs", "an object", given);
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
                           "chat_template", "tokenize"}) {
    if (given.contains(name)) Reject(std::string("chat_template_kwargs.") + name, "is no variable of a template");
  }
  CheckDate(given);
  return given;
}

}  // namespace

OrderedJson TakeConversation(OrderedJson* body) {
  Ordered taken = Ordered::object();
  for (const char* name : {"messages", "tools", "documents", "chat_template_kwargs"}) {
    const auto found = body->find(name);
    if (found != body->end()) taken[name] = std::exchange(*found, nullptr);
  }
  return taken;
}

size_t ContentBytes(const ChatRequest& conversation) {
  size_t bytes = 0;
  for (const Ordered& message : conversation.messages) {
    const Ordered& content = message.at("content");
    const Ordered& text = content.is_array() ? content[0]["text"] : content;
    bytes += text.get_ref<const std::string&>().size();
  }
  return bytes;
}

void CheckMessages(OrderedJson* taken, JsonFields& fields) {
  (void)ReadMessages(Take(taken, fields, "messages"), nullptr);
}

ChatRequest ReadConversation(OrderedJson* taken, JsonFields& fields, const Chat& chat) {
  ChatRequest request;
  request.messages = ReadMessages(Take(taken, fields, "messages"), &chat);
  request.documents = ReadObjects(Take(taken, fields, "documents"), "documents", &chat);
  request.kwargs = ReadKwargs(Take(taken, fields, "chat_template_kwargs"));
  const Json* choice = fields.Find("tool_choice");
  const bool no_tools = choice != nullptr && *choice == "none";
  // The answer is a call then, whether the template tells the model of tools or not.
  const bool is_forced = choice != nullptr && !no_tools && *choice != "auto";
  Ordered tools = Take(taken, fields, "tools");
  if (!no_tools && (!is_forced || chat.Mentions("tools")))
    request.tools = ReadObjects(std::move(tools), "tools", &chat);
  if (chat.Mentions("reasoning_effort")) {
    if (const auto effort = fields.String("reasoning_effort")) request.kwargs["reasoning_effort"] = *effort;
  }
  request.continue_final_message = fields.Bool("continue_final_message", false);
  request.add_generation_prompt = fields.Bool("add_generation_prompt", !request.continue_final_message);
  if (request.continue_final_message && request.add_generation_prompt) {
    Reject("continue_final_message",
           "the last message either goes on or is followed by an answer, which "
           "add_generation_prompt begins");
  }
  return request;
}

}  // namespace stoch::serve
