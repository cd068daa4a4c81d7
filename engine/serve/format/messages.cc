// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/serve/format/foreign_fields.h"
#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

using Json = nlohmann::json;

constexpr int kBadRequest = 400;
constexpr size_t kMaxDateBytes = 64;

std::string At(const std::string& name, size_t i) { return name + "[" + std::to_string(i) + "]"; }

[[noreturn]] void Reject(const std::string& param, const std::string& what) {
  throw RequestError(kBadRequest, param, param + ": " + what);
}

// A message's content: a string, or text parts of it.
std::string ReadContent(const Json* content, const std::string& param) {
  if (content == nullptr) Reject(param, "is missing; expected a string");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) ThrowWrongType(param, "a string or a list of text parts", *content);
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    JsonFields part((*content)[i], At(param, i) + ".");
    const std::string type = part.String("type").value_or("text");
    if (type != "text") Reject(At(param, i) + ".type", "expected text, the only kind this model reads");
    const auto piece = part.String("text");
    if (!piece) Reject(At(param, i) + ".text", "is missing; expected a string");
    RefuseForeignFields(part, FieldPlace::kContentPart);
    text += *piece;
  }
  return text;
}

}  // namespace

std::vector<ChatMessage> ReadMessages(JsonFields& fields) {
  const Json* value = fields.Find("messages");
  if (value == nullptr) Reject("messages", "is missing; expected a list of messages");
  if (!value->is_array()) ThrowWrongType("messages", "a list of messages", *value);
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string where = At("messages", i) + ".";
    JsonFields message((*value)[i], where);
    const auto role = message.String("role");
    if (!role) Reject(where + "role", "is missing; expected system, user or assistant");
    const Json* content = message.Find("content");
    // An answer that only calls tools has none.
    const bool none = message.IsNull("content") && (*role == "assistant" || *role == "tool");
    // What other models read as the developer's word is the system's.
    messages.push_back({*role == "developer" ? "system" : *role, none ? "" : ReadContent(content, where + "content")});
    RefuseForeignFields(message, FieldPlace::kMessage);
  }
  return messages;
}

ChatOptions ReadChatOptions(JsonFields& fields, const std::string& default_date) {
  ChatOptions options;
  options.date = default_date;
  const Json* given = fields.Find("chat_template_kwargs");
  if (given == nullptr) return options;
  JsonFields kwargs(*given, "chat_template_kwargs.");
  if (kwargs.Find("enable_thinking") != nullptr) options.enable_thinking = kwargs.Bool("enable_thinking", true);
  const auto date = kwargs.String("date_string");
  RefuseForeignFields(kwargs, FieldPlace::kTemplateKwargs);
  if (!date) return options;
  const bool plain = std::none_of(date->begin(), date->end(), [](char c) { return static_cast<uint8_t>(c) < ' '; });
  if (date->empty() || date->size() > kMaxDateBytes || !plain) {
    Reject("chat_template_kwargs.date_string", "expected a date such as 26 Jul 2024, on one line");
  }
  options.date = *date;
  return options;
}

}  // namespace stoch::serve
