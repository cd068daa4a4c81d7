// The shape of a Llama model, as its config.json says (Hugging Face names).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// rope_scaling of type "llama3" (Llama 3.1 and later).
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
  friend bool operator==(const Llama3RopeScaling&, const Llama3RopeScaling&) = default;
};

struct LlamaConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  int32_t bos_token_id = 1;
  std::vector<int32_t> eos_token_ids;
};

// What:   parses config.json text (and generation_config.json text, empty if absent, whose eos ids are added).
//         `where` is their folder, for messages. Absent optional keys mean what transformers' LlamaConfig makes of
//         them: as many KV heads as heads, head_dim = hidden_size / heads, eps 1e-6, theta 10000, untied, bos 1, eos 2.
// Errors: InvalidInput naming file, key, expected and got: wrong type, missing or out-of-range sizes (no product of
//         accepted sizes overflows), unknown architecture, unsupported activation, bias, quantization or rope type.
LlamaConfig ParseLlamaConfig(std::string_view config_json, std::string_view generation_config_json,
                             const std::string& where);

// What:   the shape of random:NAME: llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, llama-2-7b, tinyllama-1.1b.
// Errors: InvalidInput listing the known names.
LlamaConfig NamedLlamaConfig(std::string_view name);
std::vector<std::string_view> NamedLlamaConfigs();

// Parameters in decoder linears, and in everything.
int64_t LinearParameters(const LlamaConfig& config);
int64_t TotalParameters(const LlamaConfig& config);

}  // namespace stoch
