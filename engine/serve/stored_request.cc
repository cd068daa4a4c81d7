// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/stored_request.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

using Json = nlohmann::json;

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
  auto& generate = request.generate;
  field("max_tokens", generate.max_tokens);
  field("stop", generate.stop);
  field("stop_ids", generate.stop_ids);
  field("ignore_eos", generate.ignore_eos);
  field("top_logprobs", generate.top_logprobs);
  field("prompt_logprobs", generate.prompt_logprobs);
  field("hash_logits", generate.hash_logits);
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

}  // namespace

std::string Store(const StoredRequest& stored) {
  Json json = Json::object();
  ForEachField(stored, [&](const char* name, const auto& value) { json[name] = value; });
  for (const Prompt& prompt : stored.request.prompts) {
    json["prompts"].push_back({{"ids", prompt.ids}});
    if (stored.request.echo) json["prompts"].back()["text"] = prompt.text;
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
    const Json json = Json::from_cbor(bytes);
    ForEachField(stored, [&](const char* name, auto& value) { json.at(name).get_to(value); });
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
  stored.frame.seed = static_cast<int64_t>(stored.request.generate.sampling.seed);
  stored.frame.date = stored.request.date;
  return stored;
}

}  // namespace stoch::serve
