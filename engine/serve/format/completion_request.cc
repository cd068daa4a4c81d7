// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/completion_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "engine/request/text_stream.h"
#include "engine/serve/format/foreign_fields.h"
#include "engine/serve/format/grammar_fields.h"
#include "engine/serve/format/list_limits.h"
#include "engine/serve/format/messages.h"
#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

using Json = SortedJson;

constexpr int kBadRequest = 400;
constexpr int kNotFound = 404;
constexpr int64_t kDefaultMaxTokens = 16;  // of completions, in the OpenAI API
constexpr int64_t kMaxLogprobs = 100;
constexpr int64_t kAnyInteger = int64_t{1} << 31;
constexpr size_t kMaxStopBytes = 256;
constexpr int64_t kUnboundedTokens = 4096;  // what an absent max_tokens counts as in max_answer_values
constexpr size_t kMaxSaltBytes = 256;

std::string At(const std::string& name, size_t i) { return name + "[" + std::to_string(i) + "]"; }

[[noreturn]] void Reject(const std::string& param, const std::string& what) {
  throw RequestError(kBadRequest, param, param + ": " + what);
}

const Tokenizer& RequireTokenizer(const ModelFacts& model, const char* param) {
  if (model.tokenizer == nullptr) Reject(param, "needs a tokenizer, and this model has none; give token ids");
  return *model.tokenizer;
}

// ---------------------------------------------------------------------------------------------------- prompts ----

// A tokenizer may know more than the model it came with.
void CheckIds(const std::vector<int32_t>& ids, const std::string& param, const ModelFacts& model) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= model.vocab_size) Reject(param, "becomes token " + std::to_string(id) + "; the model has none");
  }
}

Prompt TextPrompt(const std::string& text, const std::string& param, const ModelFacts& model) {
  const Tokenizer& tokenizer = RequireTokenizer(model, param.c_str());
  CheckTextBytes(text.size(), param, model);
  Prompt prompt;
  prompt.text = text;
  try {
    prompt.ids = tokenizer.Encode(text, {});
  } catch (const InvalidInput& error) {
    Reject(param, error.what());
  }
  CheckIds(prompt.ids, param, model);
  return prompt;
}

Prompt IdsPrompt(const Json& array, const std::string& param, const ModelFacts& model) {
  Prompt prompt;
  prompt.ids = ReadIds(array, param, model.vocab_size);
  // Ids beyond the tokenizer's own exist in padded vocabularies; they have no text.
  if (model.tokenizer != nullptr) {
    std::vector<int32_t> known;
    std::copy_if(prompt.ids.begin(), prompt.ids.end(), std::back_inserter(known),
                 [&](int32_t id) { return id < model.tokenizer->vocab_size(); });
    prompt.text = model.tokenizer->Decode(known);
  }
  return prompt;
}

void CheckChoices(size_t prompts, int n, const ModelFacts& model) {
  const auto choices = static_cast<int64_t>(prompts) * n;
  if (choices <= model.max_choices) return;
  Reject("n", std::to_string(prompts) + " prompts with n = " + std::to_string(n) + " make " + std::to_string(choices) +
                  " sequences; allowed is " + std::to_string(model.max_choices) + " per request");
}

std::vector<Prompt> ReadPrompts(JsonFields& fields, int n, const ModelFacts& model) {
  constexpr const char* kExpected = "a string, a list of strings, a list of token ids, or a list of such lists";
  const Json* value = fields.Find("prompt");
  if (value == nullptr) Reject("prompt", std::string("is missing; expected ") + kExpected);
  if (value->is_string()) return {TextPrompt(value->get<std::string>(), "prompt", model)};
  if (!value->is_array()) ThrowWrongType("prompt", kExpected, *value);
  if (value->empty()) Reject("prompt", "the list is empty; expected at least one prompt or token");
  if ((*value)[0].is_number()) return {IdsPrompt(*value, "prompt", model)};
  CheckChoices(value->size(), n, model);
  std::vector<Prompt> prompts;
  const bool strings = (*value)[0].is_string();
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& entry = (*value)[i];
    if (strings && !entry.is_string()) ThrowWrongType(At("prompt", i), "a string, as the entries before it", entry);
    prompts.push_back(strings ? TextPrompt(entry.get<std::string>(), At("prompt", i), model)
                              : IdsPrompt(entry, At("prompt", i), model));
  }
  return prompts;
}

// ----------------------------------------------------------------------------------------------------- fields ----

void ReadModel(JsonFields& fields, const ModelFacts& model) {
  const auto name = fields.String("model");
  if (name && *name != model.id) {
    throw RequestError(kNotFound, "model", "model: this server serves " + model.id + " only; GET /v1/models names it");
  }
}

std::vector<LogitBias> ReadLogitBias(JsonFields& fields, const ModelFacts& model) {
  const Json* value = fields.Find("logit_bias");
  if (value == nullptr) return {};
  if (!value->is_object()) ThrowWrongType("logit_bias", "an object of token id: bias", *value);
  CheckEntries(kBiases, value->size());
  std::vector<LogitBias> bias;
  for (const auto& [key, number] : value->items()) {
    const std::string param =
        "logit_bias[" + Json(ShortName(key)).dump(-1, ' ', false, Json::error_handler_t::replace) + "]";
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= model.vocab_size) {
      Reject(param, "expected a token id as key; allowed is 0.." + std::to_string(model.vocab_size - 1));
    }
    if (!number.is_number()) ThrowWrongType(param, "a number", number);
    bias.push_back({static_cast<int32_t>(id), static_cast<float>(number.get<double>())});
  }
  return bias;
}

// One that a double holds: JSON numbers are doubles in many clients.
uint64_t DrawSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) >> 11;
}

// vLLM's name, or llama.cpp's.
double ReadRepetitionPenalty(JsonFields& fields) {
  const auto penalty = fields.Number("repetition_penalty");
  const auto same = fields.Number("repeat_penalty");
  if (penalty && same && *penalty != *same) Reject("repeat_penalty", "is the same as repetition_penalty; give one");
  return penalty ? *penalty : same.value_or(1);
}

// Any number of 64 bits, signed or not, as OpenAI, vLLM and Hugging Face have them between them.
std::optional<uint64_t> ReadSeed(JsonFields& fields) {
  const Json* given = fields.Find("seed");
  if (given == nullptr) return std::nullopt;
  if (given->is_number_unsigned()) return given->get<uint64_t>();
  if (given->is_number_float() && std::abs(given->get<double>()) >= 0x1p63) {
    Reject("seed", "64 bits do not hold it; allowed is -2^63..2^64-1");
  }
  return static_cast<uint64_t>(*fields.Integer("seed", INT64_MIN, INT64_MAX));
}

// Errors: RequestError where the older and the newer name say different things.
int64_t ReadChatMaxTokens(JsonFields& fields) {
  const auto older = fields.Integer("max_tokens", 1, kAnyInteger);
  const auto newer = fields.Integer("max_completion_tokens", 1, kAnyInteger);
  if (older && newer && *older != *newer) {
    Reject("max_completion_tokens", "is " + std::to_string(*newer) + ", and max_tokens, its older name, is " +
                                        std::to_string(*older) + "; give one");
  }
  return newer ? *newer : older.value_or(-1);
}

SamplingOptions ReadSampling(JsonFields& fields, const ModelFacts& model) {
  SamplingOptions sampling;
  sampling.temperature = fields.Number("temperature").value_or(1);
  sampling.top_p = fields.Number("top_p").value_or(1);
  sampling.top_k = std::max<int64_t>(0, fields.Integer("top_k", -1, kAnyInteger).value_or(0));  // -1: all, as in vLLM
  sampling.min_p = fields.Number("min_p").value_or(0);
  sampling.presence_penalty = fields.Number("presence_penalty").value_or(0);
  sampling.frequency_penalty = fields.Number("frequency_penalty").value_or(0);
  sampling.repeat_penalty = ReadRepetitionPenalty(fields);
  sampling.logit_bias = ReadLogitBias(fields, model);
  const auto seed = ReadSeed(fields);
  sampling.seed = seed ? *seed : model.default_seed ? *model.default_seed : DrawSeed();
  try {
    Validate(sampling, model.vocab_size);
  } catch (const InvalidInput& error) {
    // "NAME = VALUE: allowed is ..."; one name differs here.
    std::string message = error.what();
    constexpr std::string_view kOurs = "repeat_penalty";
    if (message.starts_with(kOurs) && fields.Find("repetition_penalty") != nullptr) {
      message.replace(0, kOurs.size(), "repetition_penalty");
    }
    throw RequestError(kBadRequest, message.substr(0, message.find(' ')), message);
  }
  return sampling;
}

std::vector<std::string> ReadStop(JsonFields& fields, const ModelFacts& model) {
  const Json* value = fields.Find("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stop;
  if (value->is_string()) {
    stop.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    CheckEntries(kStops, value->size());
    for (size_t i = 0; i < value->size(); ++i) {
      if (!(*value)[i].is_string()) ThrowWrongType(At("stop", i), "a string", (*value)[i]);
      stop.push_back((*value)[i].get<std::string>());
    }
  } else {
    ThrowWrongType("stop", "a string or a list of strings", *value);
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    if (!stop[i].empty() && stop[i].size() <= kMaxStopBytes) continue;
    Reject(value->is_array() ? At("stop", i) : "stop",
           "has " + std::to_string(stop[i].size()) + " bytes; allowed are 1.." + std::to_string(kMaxStopBytes));
  }
  if (!stop.empty()) RequireTokenizer(model, "stop");
  return stop;
}

// As in vLLM, which takes no empty one.
std::string ReadCacheSalt(JsonFields& fields) {
  const auto salt = fields.String("cache_salt");
  if (!salt) return "";
  if (salt->empty() || salt->size() > kMaxSaltBytes) {
    Reject("cache_salt",
           "has " + std::to_string(salt->size()) + " bytes; allowed are 1.." + std::to_string(kMaxSaltBytes));
  }
  return *salt;
}

int ReadN(JsonFields& fields) { return static_cast<int>(fields.Integer("n", 1, 128).value_or(1)); }

void SetGrammar(AskedGrammar asked, const ModelFacts& model, CompletionRequest* request) {
  if (asked.grammar.empty()) return;
  if (!model.check_grammar) Reject(asked.field, model.grammar_refusal);
  if (request->generate.ignore_eos)
    Reject(asked.field, "needs the tokens that ignore_eos ignores: they end the answer");
  request->generate.grammar = std::move(asked.grammar);
  request->grammar_field = std::move(asked.field);
}

// What both endpoints share, once prompts and logprobs are read.
void ReadCommon(JsonFields& fields, const OrderedJson& grammars, const ModelFacts& model, CompletionRequest* request) {
  GenerateRequest& generate = request->generate;
  generate.sampling = ReadSampling(fields, model);
  const Json* seed = fields.Find("seed");
  request->negative_seed = seed != nullptr && seed->get<double>() < 0;
  generate.stop = ReadStop(fields, model);
  if (const Json* ids = fields.Find("stop_token_ids")) {
    CheckEntries(kStopIds, ids->size());
    const std::vector<int32_t> more = ReadIds(*ids, "stop_token_ids", model.vocab_size);
    generate.stop_ids.insert(generate.stop_ids.end(), more.begin(), more.end());
  }
  generate.ignore_eos = fields.Bool("ignore_eos", false);
  SetGrammar(ReadGrammar(grammars, fields), model, request);
  AddTokenizerStops(model.tokenizer, &generate);
  generate.hash_logits = fields.Bool("return_logits_sha256", false);
  generate.cache_salt = ReadCacheSalt(fields);
  request->stream = fields.Bool("stream", false);
  if (const Json* options = fields.Find("stream_options")) {
    if (!request->stream) Reject("stream_options", "has no meaning without stream");
    JsonFields stream(*options, "stream_options.");
    request->include_usage = stream.Bool("include_usage", false);
    RefuseForeignFields(stream, FieldPlace::kStreamOptions);
  }
  fields.Find("user");  // a label of the client's
  if (fields.Integer("best_of", 1, kAnyInteger).value_or(1) > request->n) {
    Reject("best_of", "more than n is not supported: this server does not choose among answers");
  }
  request->ignored = RefuseForeignFields(fields, request->chat ? FieldPlace::kChat : FieldPlace::kCompletion);
}

// How many numbers and words the answer may hold: a few bytes of a request can ask for gigabytes of it.
void CheckAnswer(const CompletionRequest& request, const ModelFacts& model) {
  const int64_t asked = request.generate.max_tokens;
  int64_t tokens = 0;
  for (const Prompt& prompt : request.prompts) {
    const auto length = static_cast<int64_t>(prompt.ids.size());
    tokens += (request.echo ? length : 0) + std::min(asked < 0 ? kUnboundedTokens : asked, model.context - length);
  }
  const int64_t values = tokens * request.n * (1 + std::max(0, request.generate.top_logprobs));
  if (values <= model.max_answer_values) return;
  Reject(request.wants_logprobs() ? "logprobs" : "max_tokens",
         "the answer may have " + std::to_string(values) +
             " values, counting choices times (prompt if echoed + max_tokens) times (1 + alternatives); allowed are " +
             std::to_string(model.max_answer_values));
}

void CheckSizes(const CompletionRequest& request, const ModelFacts& model) {
  CheckChoices(request.prompts.size(), request.n, model);
  const int64_t most = model.context - (request.generate.max_tokens == 0 ? 0 : 1);
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const auto tokens = static_cast<int64_t>(request.prompts[i].ids.size());
    const std::string param = request.chat ? "messages" : request.prompts.size() == 1 ? "prompt" : At("prompt", i);
    if (tokens == 0) Reject(param, "has no tokens; expected at least one");
    if (tokens > most) {
      Reject(param, "has " + std::to_string(tokens) + " tokens; allowed is " + std::to_string(most) +
                        " with this max_tokens in a context of " + std::to_string(model.context));
    }
  }
  CheckAnswer(request, model);
}

}  // namespace

void CheckTextBytes(size_t bytes, const std::string& param, const ModelFacts& model) {
  const auto most = static_cast<size_t>(model.context * model.longest_token_bytes);
  if (bytes <= most) return;
  Reject(param, "has " + std::to_string(bytes) + " bytes; a context of " + std::to_string(model.context) +
                    " tokens of at most " + std::to_string(model.longest_token_bytes) + " bytes holds " +
                    std::to_string(most));
}

void SetTokenizer(const Tokenizer* tokenizer, ModelFacts* facts) {
  facts->tokenizer = tokenizer;
  if (tokenizer == nullptr) return;
  // A character that is no token, in a vocabulary without bytes, becomes one too.
  constexpr int64_t kCharacterBytes = 4;
  facts->longest_token_bytes = kCharacterBytes;
  int64_t special_bytes = 0;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const auto bytes = static_cast<int64_t>(tokenizer->TokenBytes(id).size());
    facts->longest_token_bytes = std::max(facts->longest_token_bytes, bytes);
    if (!tokenizer->IsSpecial(id)) continue;
    special_bytes = std::max(special_bytes, static_cast<int64_t>(tokenizer->TokenText(id).size()));
  }
  facts->longest_written_bytes = std::max(facts->longest_token_bytes, special_bytes);
}

GenerateRequest CompletionRequest::Choice(size_t i) const {
  GenerateRequest choice = generate;
  choice.prompt = prompt_of(i).ids;
  choice.sampling.choice = i % static_cast<size_t>(n);
  choice.stop.clear();  // of its text, which is made here
  return choice;
}

int64_t CompletionRequest::MostEvents(int64_t context) const {
  constexpr int64_t kFirstAndLast = 2, kOfAll = 3;  // of a choice; usage, an error and the end
  int64_t events = kOfAll;
  for (size_t i = 0; i < num_choices(); ++i) {
    const auto echoed = static_cast<int64_t>(prompt_of(i).ids.size());
    events += kFirstAndLast + echoed + (generate.max_tokens < 0 ? context : generate.max_tokens);
  }
  return events;
}

CompletionRequest ParseCompletion(const Json& body, const ModelFacts& model) {
  return ParseCompletion(body, nullptr, model);
}

CompletionRequest ParseCompletion(const Json& body, const OrderedJson& grammars, const ModelFacts& model) {
  JsonFields fields(body);
  CompletionRequest request;
  ReadModel(fields, model);
  request.n = ReadN(fields);
  request.prompts = ReadPrompts(fields, request.n, model);
  request.echo = fields.Bool("echo", false);
  GenerateRequest& generate = request.generate;
  generate.max_tokens = fields.Integer("max_tokens", 0, kAnyInteger).value_or(kDefaultMaxTokens);
  if (generate.max_tokens == 0 && !request.echo) Reject("max_tokens", "0 is allowed with echo only");
  generate.top_logprobs = static_cast<int>(fields.Integer("logprobs", 0, kMaxLogprobs).value_or(-1));
  generate.prompt_logprobs = request.echo && request.wants_logprobs();
  ReadCommon(fields, grammars, model, &request);
  CheckSizes(request, model);
  return request;
}

ChatRequest ParseConversation(OrderedJson* taken, JsonFields& fields, const ModelFacts& model) {
  if (model.chat == nullptr) {
    CheckMessages(taken, fields);
    RequireTokenizer(model, "messages");
    Reject("messages", model.chat_refusal);
  }
  ChatRequest conversation = ReadConversation(taken, fields, *model.chat);
  CheckTextBytes(ContentBytes(conversation), "messages", model);
  return conversation;
}

ChatCall ParseChat(OrderedJson body, const ModelFacts& model) {
  OrderedJson conversation = TakeConversation(&body);
  const OrderedJson grammars = TakeGrammars(&body);
  const Json rest = body;
  ChatCall call;
  CompletionRequest& request = call.request;
  request.chat = true;
  JsonFields fields(rest);
  ReadModel(fields, model);
  request.n = ReadN(fields);
  AskedTools tools = ReadTools(conversation.value("tools", OrderedJson()), fields, model.tools);
  call.conversation = ParseConversation(&conversation, fields, model);
  GenerateRequest& generate = request.generate;
  // Tokens that end a turn count as ends of the sequence.
  if (!fields.Bool("ignore_eos", false)) generate.stop_ids = model.chat->stop_ids();
  generate.max_tokens = ReadChatMaxTokens(fields);
  const bool logprobs = fields.Bool("logprobs", false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxLogprobs);
  if (top && !logprobs) Reject("top_logprobs", "has no meaning without logprobs");
  if (logprobs) generate.top_logprobs = static_cast<int>(top.value_or(0));
  ReadCommon(fields, grammars, model, &request);
  request.tools = tools.form;
  request.names_tool = tools.is_named;
  if (tools.grammar.empty()) return call;
  if (!request.grammar_field.empty())
    Reject("tool_choice", "a request has one grammar, and " + request.grammar_field + " is one");
  SetGrammar({std::move(tools.grammar), "tool_choice"}, model, &request);
  return call;
}

std::vector<int32_t> ChatIds(const RenderedChat& rendered, const ModelFacts& model) {
  const auto most = static_cast<size_t>(model.context * model.longest_written_bytes);
  if (rendered.text.size() > most) {
    Reject("messages", "become " + std::to_string(rendered.text.size()) + " bytes; a context of " +
                           std::to_string(model.context) + " tokens holds " + std::to_string(most));
  }
  std::vector<int32_t> ids;
  try {
    ids = model.chat->Encode(rendered);
  } catch (const InvalidInput& error) {
    throw RequestError(kBadRequest, "messages", error.what());
  }
  CheckIds(ids, "messages", model);
  return ids;
}

void CheckGrammar(const CompletionRequest& request, const ModelFacts& model) {
  try {
    if (!request.generate.grammar.empty()) model.check_grammar(request.generate.grammar);
  } catch (const InvalidInput& error) {
    Reject(request.grammar_field, error.what());
  }
}

void SetPrompt(const RenderedChat& rendered, const ModelFacts& model, CompletionRequest* request) {
  request->prompts = {{ChatIds(rendered, model), ""}};
  request->date = rendered.date;
  request->reasoning = ReasoningStartOf(model.reasoning, rendered.text);
  CheckSizes(*request, model);
}

}  // namespace stoch::serve
