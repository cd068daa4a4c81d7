// The shapes behind random:NAME, as the config.json of these models on Hugging Face says.

#include <iterator>

#include "kernels/base/error.h"
#include "loader/config/llama_config.h"
#include "loader/quote.h"

namespace stoch {
namespace {

struct NamedConfig {
  std::string_view name;
  LlamaConfig config;
};

// meta-llama/Llama-3.x: what the three have in common.
LlamaConfig Llama3(double rope_factor) {
  LlamaConfig config;
  config.vocab_size = 128256;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{rope_factor, 1, 4, 8192};
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001};
  return config;
}

LlamaConfig Llama2(int64_t max_position_embeddings) {
  LlamaConfig config;
  config.vocab_size = 32000;
  config.max_position_embeddings = max_position_embeddings;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

struct Size {
  int64_t hidden, intermediate, layers, heads, kv_heads, head_dim;
};

LlamaConfig Sized(LlamaConfig config, const Size& size) {
  config.hidden_size = size.hidden;
  config.intermediate_size = size.intermediate;
  config.num_hidden_layers = size.layers;
  config.num_attention_heads = size.heads;
  config.num_key_value_heads = size.kv_heads;
  config.head_dim = size.head_dim;
  return config;
}

LlamaConfig Tied(LlamaConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

const std::vector<NamedConfig>& Table() {
  static const std::vector<NamedConfig> table = {
      {"llama-3.2-1b", Tied(Sized(Llama3(32), {2048, 8192, 16, 32, 8, 64}))},
      {"llama-3.1-8b", Sized(Llama3(8), {4096, 14336, 32, 32, 8, 128})},
      {"llama-3.1-70b", Sized(Llama3(8), {8192, 28672, 80, 64, 8, 128})},
      {"llama-2-7b", Sized(Llama2(4096), {4096, 11008, 32, 32, 32, 128})},
      {"tinyllama-1.1b", Sized(Llama2(2048), {2048, 5632, 22, 32, 4, 64})},
  };
  return table;
}

}  // namespace

LlamaConfig NamedLlamaConfig(std::string_view name) {
  std::string known;
  for (const NamedConfig& entry : Table()) {
    if (entry.name == name) return entry.config;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw InvalidInput("random model: expected one of " + known + ", got " + Quoted(name));
}

std::vector<std::string_view> NamedLlamaConfigs() {
  std::vector<std::string_view> names;
  for (const NamedConfig& entry : Table()) names.push_back(entry.name);
  return names;
}

}  // namespace stoch
