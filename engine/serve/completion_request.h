// The bodies of /v1/completions and /v1/chat/completions, checked and turned into requests to the engine.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::serve {

// What HTTP threads may know of the model: fixed once it is loaded.
struct ModelFacts {
  std::string id;  // what clients call it
  int64_t vocab_size = 0;
  int64_t context = 0;                   // longest sequence, the KV cache's size counted
  int64_t max_choices = 0;               // sequences one request may ask for
  const Tokenizer* tokenizer = nullptr;  // null: ids only
  std::string precision, sc, device;     // for people
  int64_t created = 0;                   // seconds since 1970
};

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // what echo shows
};

struct CompletionRequest {
  bool chat = false;
  std::vector<Prompt> prompts;
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  GenerateRequest generate;          // of every choice, but for prompt and sampling.choice
  std::vector<std::string> ignored;  // fields that mean nothing here

  bool wants_logprobs() const { return generate.top_logprobs >= 0; }
  size_t num_choices() const { return prompts.size() * static_cast<size_t>(n); }
  // What: the request of choice i; choices of one prompt are neighbours.
  GenerateRequest Choice(size_t i) const;
};

// What:   a body that passed every check a running engine would make.
// Bits:   a string prompt becomes the ids `stoch generate` makes of it; BOS is never added to ids. Defaults are those
//         of the OpenAI API, but for seed: 0.
// Errors: RequestError(400) naming field and index; 404 for another model's name.
CompletionRequest ParseCompletion(const nlohmann::json& body, const ModelFacts& model);
CompletionRequest ParseChat(const nlohmann::json& body, const ModelFacts& model);

}  // namespace stoch::serve
