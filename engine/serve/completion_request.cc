#include "engine/serve/completion_request.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/serve/json_fields.h"
#include "engine/serve/request_error.h"
#include "loader/tokenizer/chat_template.h"

namespace stoch::serve {
namespace {

using Json = nlohmann::json;

constexpr int kBadRequest = 400;
constexpr int kNotFound = 404;
constexpr int64_t kDefaultMaxTokens = 16;  // of completions, in the OpenAI API
constexpr int64_t kMaxLogprobs = 100;
constexpr int64_t kAnyInteger = int64_t{1} << 31;

std::string At(const std::string& name, size_t i) { return name + "[" + std::to_string(i) + "]"; }

[[noreturn]] void Reject(const std::string& param, const std::string& what) {
  throw RequestError(kBadRequest, param, param + ": " + what);
}

const Tokenizer& RequireTokenizer(const ModelFacts& model, const char* param) {
  if (model.tokenizer == nullptr) Reject(param, "needs a tokenizer, and this model has none; give token ids");
  return *model.tokenizer;
}

// ---------------------------------------------------------------------------------------------------- prompts ----

Prompt TextPrompt(const std::string& text, const std::string& param, const ModelFacts& model) {
  const Tokenizer& tokenizer = RequireTokenizer(model, param.c_str());
  Prompt prompt;
  prompt.text = text;
  try {
    prompt.ids = tokenizer.Encode(text, {});
  } catch (const InvalidInput& error) {
    Reject(param, error.what());
  }
  // A tokenizer may know more than the model it came with.
  for (const int32_t id : prompt.ids) {
    if (id < 0 || id >= model.vocab_size) Reject(param, "becomes token " + std::to_string(id) + "; the model has none");
  }
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

std::vector<Prompt> ReadPrompts(JsonFields& fields, const ModelFacts& model) {
  constexpr const char* kExpected = "a string, a list of strings, a list of token ids, or a list of such lists";
  const Json* value = fields.Find("prompt");
  if (value == nullptr) Reject("prompt", std::string("is missing; expected ") + kExpected);
  if (value->is_string()) return {TextPrompt(value->get<std::string>(), "prompt", model)};
  if (!value->is_array()) ThrowWrongType("prompt", kExpected, *value);
  if (value->empty()) Reject("prompt", "the list is empty; expected at least one prompt or token");
  if ((*value)[0].is_number()) return {IdsPrompt(*value, "prompt", model)};
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
    text += *piece;
  }
  return text;
}

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
    messages.push_back({*role, ReadContent(message.Find("content"), where + "content")});
  }
  return messages;
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
  std::vector<LogitBias> bias;
  for (const auto& [key, number] : value->items()) {
    const std::string param = "logit_bias[" + Json(key).dump() + "]";
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

SamplingOptions ReadSampling(JsonFields& fields, const ModelFacts& model) {
  SamplingOptions sampling;
  sampling.temperature = fields.Number("temperature").value_or(1);
  sampling.top_p = fields.Number("top_p").value_or(1);
  sampling.top_k = std::max<int64_t>(0, fields.Integer("top_k", -1, kAnyInteger).value_or(0));  // -1: all, as in vLLM
  sampling.min_p = fields.Number("min_p").value_or(0);
  sampling.presence_penalty = fields.Number("presence_penalty").value_or(0);
  sampling.frequency_penalty = fields.Number("frequency_penalty").value_or(0);
  sampling.repeat_penalty = fields.Number("repetition_penalty").value_or(1);
  sampling.logit_bias = ReadLogitBias(fields, model);
  sampling.seed = static_cast<uint64_t>(fields.Integer("seed", INT64_MIN, INT64_MAX).value_or(0));
  try {
    Validate(sampling, model.vocab_size);
  } catch (const InvalidInput& error) {
    // "NAME = VALUE: allowed is ..."; one name differs here.
    std::string message = error.what();
    if (message.starts_with("repeat_penalty")) message.replace(0, 14, "repetition_penalty");
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
    for (size_t i = 0; i < value->size(); ++i) {
      if (!(*value)[i].is_string()) ThrowWrongType(At("stop", i), "a string", (*value)[i]);
      stop.push_back((*value)[i].get<std::string>());
    }
  } else {
    ThrowWrongType("stop", "a string or a list of strings", *value);
  }
  if (!stop.empty()) RequireTokenizer(model, "stop");
  return stop;
}

// What both endpoints share, once prompts and logprobs are read.
void ReadCommon(JsonFields& fields, const ModelFacts& model, CompletionRequest* request) {
  GenerateRequest& generate = request->generate;
  generate.sampling = ReadSampling(fields, model);
  generate.stop = ReadStop(fields, model);
  if (const Json* ids = fields.Find("stop_token_ids")) {
    const std::vector<int32_t> more = ReadIds(*ids, "stop_token_ids", model.vocab_size);
    generate.stop_ids.insert(generate.stop_ids.end(), more.begin(), more.end());
  }
  generate.ignore_eos = fields.Bool("ignore_eos", false);
  request->n = static_cast<int>(fields.Integer("n", 1, 128).value_or(1));
  request->stream = fields.Bool("stream", false);
  if (const Json* options = fields.Find("stream_options")) {
    if (!request->stream) Reject("stream_options", "has no meaning without stream");
    request->include_usage = JsonFields(*options, "stream_options.").Bool("include_usage", false);
  }
  fields.Find("user");  // a label of the client's
  request->ignored = fields.Unknown();
}

void CheckSizes(const CompletionRequest& request, const ModelFacts& model) {
  if (static_cast<int64_t>(request.num_choices()) > model.max_choices) {
    Reject("n", std::to_string(request.prompts.size()) + " prompts with n = " + std::to_string(request.n) + " make " +
                    std::to_string(request.num_choices()) + " sequences; allowed is " +
                    std::to_string(model.max_choices) + " per request");
  }
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
}

}  // namespace

GenerateRequest CompletionRequest::Choice(size_t i) const {
  GenerateRequest choice = generate;
  choice.prompt = prompts[i / static_cast<size_t>(n)].ids;
  choice.sampling.choice = i % static_cast<size_t>(n);
  return choice;
}

CompletionRequest ParseCompletion(const Json& body, const ModelFacts& model) {
  JsonFields fields(body);
  CompletionRequest request;
  ReadModel(fields, model);
  request.prompts = ReadPrompts(fields, model);
  request.echo = fields.Bool("echo", false);
  GenerateRequest& generate = request.generate;
  generate.max_tokens = fields.Integer("max_tokens", 0, kAnyInteger).value_or(kDefaultMaxTokens);
  if (generate.max_tokens == 0 && !request.echo) Reject("max_tokens", "0 is allowed with echo only");
  generate.top_logprobs = static_cast<int>(fields.Integer("logprobs", 0, kMaxLogprobs).value_or(-1));
  generate.prompt_logprobs = request.echo && request.wants_logprobs();
  ReadCommon(fields, model, &request);
  CheckSizes(request, model);
  return request;
}

CompletionRequest ParseChat(const Json& body, const ModelFacts& model) {
  JsonFields fields(body);
  CompletionRequest request;
  request.chat = true;
  ReadModel(fields, model);
  const std::vector<ChatMessage> messages = ReadMessages(fields);
  const Tokenizer& tokenizer = RequireTokenizer(model, "messages");
  GenerateRequest& generate = request.generate;
  try {
    const ChatFormat format = DetectChatFormat(tokenizer);
    request.prompts = {{EncodeChat(tokenizer, format, messages), ""}};
    // What ends a turn is an end of sequence.
    if (!fields.Bool("ignore_eos", false)) generate.stop_ids = ChatStopIds(tokenizer, format);
  } catch (const InvalidInput& error) {
    throw RequestError(kBadRequest, "messages", error.what());
  }
  // The newer name wins, as in the OpenAI API.
  const auto max_tokens = fields.Integer("max_tokens", 1, kAnyInteger);
  generate.max_tokens = fields.Integer("max_completion_tokens", 1, kAnyInteger).value_or(max_tokens.value_or(-1));
  const bool logprobs = fields.Bool("logprobs", false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxLogprobs);
  if (top && !logprobs) Reject("top_logprobs", "has no meaning without logprobs");
  if (logprobs) generate.top_logprobs = static_cast<int>(top.value_or(0));
  ReadCommon(fields, model, &request);
  CheckSizes(request, model);
  return request;
}

}  // namespace stoch::serve
