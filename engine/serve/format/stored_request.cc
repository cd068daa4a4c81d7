// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/stored_request.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"

namespace stoch::serve {
namespace {

using Json = SortedJson;

// The one list of what is stored. `field` takes a name and a member, of a const request or of one that is filled.
template <class Stored, class Field>
void ForEachField(Stored& stored, const Field& field) {
  auto& request = stored.request;
  field("chat", request.chat);
  field("n", request.n);
  field("stream", request.stream);
  field("include_usage", request.include_usage);
  field("echo", request.echo);
  field("date", request.date);
  field("reasoning", request.reasoning);
  field("tools", request.tools);
  field("names_tool", request.names_tool);
  auto& generate = request.generate;
  field("max_tokens", generate.max_tokens);
  field("stop", generate.stop);
  field("stop_ids", generate.stop_ids);
  field("ignore_eos", generate.ignore_eos);
  field("top_logprobs", generate.top_logprobs);
  field("prompt_logprobs", generate.prompt_logprobs);
  field("hash_logits", generate.hash_logits);
  field("cache_salt", generate.cache_salt);
  field("grammar_kind", generate.grammar.kind);
  field("grammar", generate.grammar.text);
  auto& sampling = generate.sampling;
  field("temperature", sampling.temperature);
  field("top_p", sampling.top_p);
  field("top_k", sampling.top_k);
  field("min_p", sampling.min_p);
  field("repeat_penalty", sampling.repeat_penalty);
  field("presence_penalty", sampling.presence_penalty);
  field("frequency_penalty", sampling.frequency_penalty);
  field("seed", sampling.seed);
  auto& frame = stored.frame;
  field("id", frame.id);
  field("model", frame.model);
  field("created", frame.created);
  field("fingerprint", frame.fingerprint);
}

// Refuses what is nested more deeply than anything that Store writes, before it is read: reading takes stack for every
// level, and a file may say anything.
class Shallow final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw InvalidInput(std::string("a stored request: ") + error.what());
  }

 private:
  bool Enter() { return ++depth_ <= 8; }
  bool Leave() {
    --depth_;
    return true;
  }
  int depth_ = 0;
};

constexpr int kMostN = 128;
constexpr int kMostAlternatives = 100;

void Require(bool condition, const char* what) {
  if (!condition) throw InvalidInput(std::string("a stored answer: ") + what);
}

void CheckIds(const std::vector<int32_t>& ids, const ModelFacts& model, const char* what) {
  for (const int32_t id : ids) Require(id >= 0 && id < model.vocab_size, what);
}

void CheckLogprob(const TokenLogprob& logprob, const ModelFacts& model) {
  for (const auto& [id, value] : logprob.top) {
    Require(id >= 0 && id < model.vocab_size, "an alternative is no token of the model");
  }
}

void CheckRequest(const CompletionRequest& request, const ModelFacts& model) {
  const GenerateRequest& generate = request.generate;
  Require(request.stream, "it is no stream");
  Require(request.n >= 1 && request.n <= kMostN, "n is out of range");
  Require(!request.prompts.empty(), "it has no prompt");
  for (const Prompt& prompt : request.prompts) {
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    Require(tokens >= 1 && tokens <= model.context, "a prompt does not fit the context");
    CheckIds(prompt.ids, model, "a prompt has no token of the model");
  }
  CheckIds(generate.stop_ids, model, "a stop id is no token of the model");
  Require(generate.stop.empty() || model.tokenizer != nullptr, "stop strings need a tokenizer");
  Require(request.reasoning <= ReasoningStart::kInside, "reasoning begins nowhere");
  Require(request.tools <= ToolForm::kLlama3, "calls have no known form");
  Require(generate.grammar.kind <= GrammarSpec::Kind::kStructuralTag, "its grammar is of no known kind");
  if (!generate.grammar.empty()) {
    Require(static_cast<bool>(model.check_grammar), "it has a grammar, and this server has none");
    model.check_grammar(generate.grammar);
  }
  Require(generate.max_tokens >= -1, "max_tokens is out of range");
  Require(generate.top_logprobs >= -1 && generate.top_logprobs <= kMostAlternatives, "logprobs is out of range");
  Require(!generate.prompt_logprobs || request.wants_logprobs(), "prompt_logprobs without logprobs");
  Validate(generate.sampling, model.vocab_size);
}

void CheckUpdate(const JobUpdate& update, const CompletionRequest& request, const ModelFacts& model) {
  CheckIds(update.ids, model, "an update has no token of the model");
  Require(!request.wants_logprobs() || update.error_status != 0 || update.logprobs.size() == update.ids.size(),
          "an update has not as many logprobs as tokens");
  for (const TokenLogprob& logprob : update.logprobs) CheckLogprob(logprob, model);
  for (const auto& logprob : update.prompt_logprobs) {
    if (logprob) CheckLogprob(*logprob, model);
  }
  Require(update.finish <= FinishReason::kCancelled, "an update ends for no known reason");
  Require(update.error_status == 0 || (update.error_status >= 400 && update.error_status <= 599),
          "an update has no status of HTTP");
}

}  // namespace

std::string Store(const StoredRequest& stored) {
  ReleasedJson<Json> document{Json::object()};
  Json& json = document.json;
  ForEachField(stored, [&](const char* name, const auto& value) { json[name] = value; });
  json["negative_seed"] = stored.request.negative_seed;
  json["prompts"] = Json::array();
  for (const Prompt& prompt : stored.request.prompts) {
    Json& entry = json["prompts"].emplace_back(Json::object());
    entry["ids"] = prompt.ids;
    if (stored.request.echo) entry["text"] = prompt.text;
  }
  json["biases"] = Json::array();
  for (const LogitBias& bias : stored.request.generate.sampling.logit_bias) {
    json["biases"].push_back({bias.id, bias.bias});
  }
  std::string bytes;
  Json::to_cbor(json, bytes);
  return bytes;
}

StoredRequest Restore(const std::string& bytes) {
  StoredRequest stored;
  try {
    Shallow shallow;
    if (!Json::sax_parse(bytes, &shallow, Json::input_format_t::cbor)) {
      throw InvalidInput("a stored request: is nested too deeply");
    }
    const ReleasedJson<Json> document{Json::from_cbor(bytes)};
    const Json& json = document.json;
    ForEachField(stored, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    stored.request.negative_seed = json.value("negative_seed", false);  // answers of earlier versions do not say it
    for (const Json& entry : json.at("prompts")) {
      Prompt& prompt = stored.request.prompts.emplace_back();
      entry.at("ids").get_to(prompt.ids);
      if (stored.request.echo) entry.at("text").get_to(prompt.text);
    }
    for (const Json& bias : json.at("biases")) {
      stored.request.generate.sampling.logit_bias.push_back({bias.at(0).get<int32_t>(), bias.at(1).get<float>()});
    }
  } catch (const Json::exception& error) {
    throw InvalidInput(std::string("a stored request: ") + error.what());
  }
  stored.frame.chat = stored.request.chat;
  stored.frame.seed = stored.request.generate.sampling.seed;
  stored.frame.negative_seed = stored.request.negative_seed;
  stored.frame.date = stored.request.date;
  return stored;
}

void CheckKept(const StoredRequest& stored, const AnswerLog::Kept& kept, const ModelFacts& model) {
  const CompletionRequest& request = stored.request;
  CheckRequest(request, model);
  Require(!kept.torn || request.num_choices() == 1, "updates of its choices may be missing");
  std::vector<int64_t> tokens(request.num_choices());
  for (const AnswerLog::Update& update : kept.updates) {
    Require(update.choice < tokens.size(), "an update is of no choice of the request");
    CheckUpdate(update.update, request, model);
    const auto prompt = static_cast<int64_t>(request.prompt_of(update.choice).ids.size());
    tokens[update.choice] += static_cast<int64_t>(update.update.ids.size());
    Require(tokens[update.choice] <= model.context - prompt, "updates have more tokens than the context");
  }
}

}  // namespace stoch::serve
