// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/foreign_fields.h"

#include <nlohmann/json.hpp>
#include <string>

#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

using Json = nlohmann::json;

constexpr int kBadRequest = 400;

struct ForeignField {
  const char* name;
  const char* neutral;  // JSON; null always is
};
constexpr ForeignField kForeignFields[] = {
    {"tools", "[]"},
    {"tool_choice", "\"none\""},
    {"functions", "[]"},
    {"function_call", "\"none\""},
    {"response_format", R"({"type":"text"})"},
    {"modalities", R"(["text"])"},
    {"suffix", "\"\""},
    {"min_tokens", "0"},
    {"bad_words", "[]"},
    {"use_beam_search", "false"},
    {"length_penalty", "1"},
    {"truncate_prompt_tokens", "null"},
    {"skip_special_tokens", "true"},
    {"include_stop_str_in_output", "false"},
    {"add_generation_prompt", "true"},
    {"continue_final_message", "false"},
    {"chat_template", "null"},
    {"documents", "[]"},
    {"structured_outputs", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"grammar", "\"\""},
    {"json_schema", "null"},
    {"logits_processors", "[]"},
    {"prompt_embeds", "null"},
    {"audio", "null"},
    {"typical_p", "1"},
    {"mirostat", "0"},
    {"dry_multiplier", "0"},
    {"xtc_probability", "0"},
};

}  // namespace

void RefuseForeignFields(JsonFields& fields, bool chat) {
  for (const ForeignField& field : kForeignFields) {
    const Json* value = fields.Find(field.name);
    if (value == nullptr || *value == Json::parse(field.neutral)) continue;
    throw RequestError(
        kBadRequest, field.name,
        std::string(field.name) + ": is not supported; allowed is " + field.neutral + ", which changes nothing");
  }
  // Of the other endpoint.
  if (chat && fields.Bool("echo", false)) {
    throw RequestError(kBadRequest, "echo", "echo: has a meaning for /v1/completions only");
  }
}

}  // namespace stoch::serve
