// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/grammar_fields.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/serve/http/request_error.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

using Ordered = OrderedJson;
using Kind = GrammarSpec::Kind;

constexpr int kBadRequest = 400;
constexpr const char* kResponseFormat = "response_format";
constexpr const char* kStructuredOutputs = "structured_outputs";

enum class Form : uint8_t { kSchema, kText, kChoices };

struct GrammarField {
  const char* name;
  Kind kind;
  Form form;
};

// Fields of a request, by the names of vLLM, llama.cpp and SGLang.
constexpr GrammarField kFields[] = {
    {"guided_json", Kind::kJsonSchema, Form::kSchema},
    {"guided_regex", Kind::kRegex, Form::kText},
    {"guided_choice", Kind::kEbnf, Form::kChoices},
    {"guided_grammar", Kind::kEbnf, Form::kText},
    {"json_schema", Kind::kJsonSchema, Form::kSchema},
    {"regex", Kind::kRegex, Form::kText},
    {"ebnf", Kind::kEbnf, Form::kText},
    {"grammar", Kind::kEbnf, Form::kText},
};
// Fields of structured_outputs.
constexpr GrammarField kOutputs[] = {
    {"json", Kind::kJsonSchema, Form::kSchema},
    {"regex", Kind::kRegex, Form::kText},
    {"choice", Kind::kEbnf, Form::kChoices},
    {"grammar", Kind::kEbnf, Form::kText},
};

[[noreturn]] void Reject(const std::string& field, const std::string& what) {
  throw RequestError(kBadRequest, field, field + ": " + what);
}

std::string TextOf(const Ordered& value, const std::string& field) {
  if (!value.is_string()) ThrowWrongType(field, "a string", value);
  return value.get<std::string>();
}

std::vector<std::string> Choices(const Ordered& value, const std::string& field) {
  if (!value.is_array()) ThrowWrongType(field, "a list of strings", value);
  std::vector<std::string> choices;
  for (size_t i = 0; i < value.size() && i <= kMaxGrammarChoices; ++i) {
    choices.push_back(TextOf(value[i], field + "[" + std::to_string(i) + "]"));
  }
  return choices;
}

// A schema is an object, or true; vLLM takes its JSON in a string, too.
std::string Schema(const Ordered& value, const std::string& field) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() && !value.is_boolean()) ThrowWrongType(field, "a JSON schema", value);
  return value.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

AskedGrammar Asked(Kind kind, std::string text, const std::string& field) {
  AskedGrammar asked{{kind, std::move(text)}, field};
  try {
    Validate(asked.grammar);
  } catch (const InvalidInput& error) {
    Reject(field, error.what());
  }
  return asked;
}

AskedGrammar ReadField(const GrammarField& known, const Ordered& value, const std::string& field) {
  switch (known.form) {
    case Form::kSchema: return Asked(known.kind, Schema(value, field), field);
    case Form::kText: return Asked(known.kind, TextOf(value, field), field);
    case Form::kChoices: break;
  }
  const std::vector<std::string> choices = Choices(value, field);
  try {
    return {ChoiceGrammar(choices), field};
  } catch (const InvalidInput& error) {
    Reject(field, error.what());
  }
}

AskedGrammar ReadResponseFormat(const Ordered& value) {
  if (!value.is_object()) ThrowWrongType(kResponseFormat, "an object", value);
  const std::string path = std::string(kResponseFormat) + ".";
  const Ordered type = value.value("type", Ordered());
  if (type == "text") return {};
  if (type == "json_object") {
    // As llama.cpp and SGLang take it.
    if (value.contains("schema"))
      return Asked(Kind::kJsonSchema, Schema(value["schema"], path + "schema"), path + "schema");
    return Asked(Kind::kJson, "", kResponseFormat);
  }
  constexpr const char* kTypes = "text, json_object or json_schema";
  if (!type.is_string()) ThrowWrongType(path + "type", kTypes, type);
  if (type != "json_schema") {
    Reject(path + "type", std::string("expected ") + kTypes + ", got " + ShortName(type.get<std::string>()));
  }
  const Ordered wrapped = value.value("json_schema", Ordered());
  if (!wrapped.is_object()) ThrowWrongType(path + "json_schema", "an object with a schema", wrapped);
  const Ordered schema = wrapped.value("schema", Ordered());
  const std::string field = path + "json_schema.schema";
  if (schema.is_null()) Reject(field, "is missing; expected a JSON schema");
  return Asked(Kind::kJsonSchema, Schema(schema, field), field);
}

void Add(AskedGrammar more, AskedGrammar* asked) {
  if (more.field.empty()) return;
  if (!asked->field.empty()) Reject(more.field, "a request has one grammar, and " + asked->field + " is one");
  *asked = std::move(more);
}

AskedGrammar ReadOutputs(const Ordered& value) {
  if (!value.is_object()) ThrowWrongType(kStructuredOutputs, "an object", value);
  AskedGrammar asked;
  for (const auto& [name, entry] : value.items()) {
    const std::string field = std::string(kStructuredOutputs) + "." + ShortName(name);
    if (entry.is_null()) continue;
    if (name == "json_object") {
      if (!entry.is_boolean()) ThrowWrongType(field, "true or false", entry);
      if (entry == true) Add(Asked(Kind::kJson, "", field), &asked);
      continue;
    }
    const auto* known = std::find_if(std::begin(kOutputs), std::end(kOutputs),
                                     [&wanted = name](const GrammarField& output) { return wanted == output.name; });
    if (known == std::end(kOutputs))
      Reject(field, "is not supported; allowed are json, json_object, regex, choice and grammar");
    Add(ReadField(*known, entry, field), &asked);
  }
  return asked;
}

}  // namespace

OrderedJson TakeGrammars(OrderedJson* body) {
  Ordered taken = Ordered::object();
  const auto take = [&](const char* name) {
    const auto found = body->find(name);
    if (found != body->end()) taken[name] = std::exchange(*found, nullptr);
  };
  if (!body->is_object()) return taken;
  take(kResponseFormat);
  take(kStructuredOutputs);
  for (const GrammarField& field : kFields) take(field.name);
  return taken;
}

bool MentionsGrammar(std::string_view body) {
  // The names of fields that hold a schema; the order of the others says nothing.
  constexpr std::string_view kSchemas[] = {"json_schema", "guided_json", "structured_outputs", "response_format"};
  return std::any_of(std::begin(kSchemas), std::end(kSchemas),
                     [&](std::string_view name) { return body.find(name) != std::string_view::npos; });
}

AskedGrammar ReadGrammar(const OrderedJson& taken, JsonFields& fields) {
  const auto value = [&](const char* name) -> Ordered {
    const SortedJson* plain = fields.Find(name);
    const auto found = taken.find(name);
    if (taken.is_object() && found != taken.end()) return *found;
    return plain == nullptr ? Ordered() : Ordered(*plain);
  };
  AskedGrammar asked;
  if (const Ordered format = value(kResponseFormat); !format.is_null()) Add(ReadResponseFormat(format), &asked);
  if (const Ordered outputs = value(kStructuredOutputs); !outputs.is_null()) Add(ReadOutputs(outputs), &asked);
  for (const GrammarField& field : kFields) {
    const Ordered given = value(field.name);
    // llama.cpp's clients send an empty text or object where they mean none.
    const bool is_empty =
        given.is_string() ? given.get_ref<const std::string&>().empty() : given.is_object() && given.empty();
    const bool is_none = given.is_null() || is_empty;
    if (!is_none || (!given.is_null() && std::string_view(field.name).starts_with("guided"))) {
      Add(ReadField(field, given, field.name), &asked);
    }
  }
  return asked;
}

}  // namespace stoch::serve
