// SPDX-License-Identifier: Apache-2.0
// The shapes behind random:NAME, as the config.json of these models on Hugging Face says.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/base/error.h"
#include "loader/config/decoder_config.h"
#include "loader/quote.h"

namespace stoch {
namespace {

struct NamedConfig {
  std::string_view name;
  DecoderConfig config;
};

// meta-llama/Llama-3.x: what the three have in common.
DecoderConfig Llama3(double rope_factor) {
  DecoderConfig config;
  config.vocab_size = 128256;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{rope_factor, 1, 4, 8192};
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001};
  return config;
}

DecoderConfig Llama2(int64_t max_position_embeddings) {
  DecoderConfig config;
  config.vocab_size = 32000;
  config.max_position_embeddings = max_position_embeddings;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

// Qwen/Qwen2.5-7B-Instruct and Qwen/Qwen3-*: what they have in common.
DecoderConfig Qwen(std::string_view model_type, int64_t vocab_size, int64_t max_position_embeddings) {
  DecoderConfig config;
  config.architecture = FindArchitecture(model_type);
  config.vocab_size = vocab_size;
  config.max_position_embeddings = max_position_embeddings;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 1e6;
  config.biases[static_cast<size_t>(BlockGroup::kQkv)] = config.architecture->has_qkv_bias;
  config.bos_token_id = 151643;
  config.eos_token_ids = {151645};
  return config;
}

// mistralai/Mistral-7B-v0.1.
DecoderConfig Mistral() {
  DecoderConfig config;
  config.architecture = FindArchitecture("mistral");
  config.vocab_size = 32000;
  config.max_position_embeddings = 32768;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

// mistralai/Mixtral-8x7B-v0.1.
DecoderConfig Mixtral() {
  DecoderConfig config = Mistral();
  config.architecture = FindArchitecture("mixtral");
  config.rope_theta = 1e6;
  return config;
}

// microsoft/Phi-3-mini-4k-instruct and microsoft/phi-4.
DecoderConfig Phi(int64_t vocab_size, int64_t max_position_embeddings, double rope_theta) {
  DecoderConfig config;
  config.architecture = FindArchitecture("phi3");
  config.vocab_size = vocab_size;
  config.max_position_embeddings = max_position_embeddings;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = rope_theta;
  return config;
}

// HuggingFaceTB/SmolLM3-3B: every fourth layer has no RoPE.
DecoderConfig SmolLM3() {
  DecoderConfig config;
  config.architecture = FindArchitecture("smollm3");
  config.vocab_size = 128256;
  config.max_position_embeddings = 65536;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 5e6;
  for (int layer = 0; layer < 36; ++layer) config.rope_layers.push_back(layer % 4 != 3);
  return config;
}

// ibm-granite/granite-3.1-8b-instruct.
DecoderConfig Granite() {
  DecoderConfig config;
  config.architecture = FindArchitecture("granite");
  config.vocab_size = 49155;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e7;
  config.embedding_multiplier = 12;
  config.residual_multiplier = 0.22;
  config.attention_multiplier = 0.0078125;
  config.logits_scaling = 16;
  return config;
}

// allenai/OLMo-2-1124-7B.
DecoderConfig Olmo2() {
  DecoderConfig config;
  config.architecture = FindArchitecture("olmo2");
  config.vocab_size = 100352;
  config.max_position_embeddings = 4096;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 500000;
  return config;
}

// google/gemma-2-2b and -9b.
DecoderConfig Gemma2(int64_t layers) {
  DecoderConfig config;
  config.architecture = FindArchitecture("gemma2");
  config.vocab_size = 256000;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-6;
  config.score_cap = 50;
  config.logit_cap = 30;
  for (int64_t layer = 0; layer < layers; ++layer) config.windows.push_back(layer % 2 == 0 ? 4096 : 0);
  return config;
}

// google/gemma-3-1b-pt: every sixth layer sees all positions, with RoPE of its own.
DecoderConfig Gemma3() {
  DecoderConfig config;
  config.architecture = FindArchitecture("gemma3_text");
  config.vocab_size = 262144;
  config.max_position_embeddings = 32768;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 1e6;
  config.local_rope_theta = 1e4;
  for (int layer = 0; layer < 26; ++layer) {
    config.rope_layers.push_back(layer % 6 == 5);
    config.windows.push_back(layer % 6 == 5 ? 0 : 512);
  }
  return config;
}

DecoderConfig WithEnds(DecoderConfig config, int32_t bos, int32_t eos) {
  config.bos_token_id = bos;
  config.eos_token_ids = {eos};
  return config;
}

DecoderConfig Windowed(DecoderConfig config, int64_t window) {
  config.windows.assign(static_cast<size_t>(config.num_hidden_layers), window);
  return config;
}

DecoderConfig WithExperts(DecoderConfig config, int64_t experts, int64_t chosen, int64_t intermediate) {
  config.num_experts = experts;
  config.num_experts_per_tok = chosen;
  config.moe_intermediate_size = intermediate;
  config.norm_topk_prob = true;
  config.sparse_layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
  return config;
}

struct Size {
  int64_t hidden, intermediate, layers, heads, kv_heads, head_dim;
};

DecoderConfig Sized(DecoderConfig config, const Size& size) {
  config.hidden_size = size.hidden;
  config.intermediate_size = size.intermediate;
  config.num_hidden_layers = size.layers;
  config.num_attention_heads = size.heads;
  config.num_key_value_heads = size.kv_heads;
  config.head_dim = size.head_dim;
  return config;
}

// Gemma multiplies the rows of its embedding, which is the head, too.
DecoderConfig ScaledEmbedding(DecoderConfig config) {
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  config.tie_word_embeddings = true;
  return WithEnds(std::move(config), 2, 1);
}

DecoderConfig Tied(DecoderConfig config) {
  config.tie_word_embeddings = true;
  return config;
}

const std::vector<NamedConfig>& Table() {
  static const std::vector<NamedConfig> table = {
      {"llama-3.2-1b", Tied(Sized(Llama3(32), {2048, 8192, 16, 32, 8, 64}))},
      {"llama-3.1-8b", Sized(Llama3(8), {4096, 14336, 32, 32, 8, 128})},
      {"llama-3.1-405b", Sized(Llama3(8), {16384, 53248, 126, 128, 8, 128})},
      {"llama-3.1-70b", Sized(Llama3(8), {8192, 28672, 80, 64, 8, 128})},
      {"llama-2-7b", Sized(Llama2(4096), {4096, 11008, 32, 32, 32, 128})},
      {"tinyllama-1.1b", Sized(Llama2(2048), {2048, 5632, 22, 32, 4, 64})},
      {"mistral-7b", Windowed(Sized(Mistral(), {4096, 14336, 32, 32, 8, 128}), 4096)},
      {"mixtral-8x7b", WithExperts(Sized(Mixtral(), {4096, 14336, 32, 32, 8, 128}), 8, 2, 14336)},
      {"phi-3-mini", WithEnds(Windowed(Sized(Phi(32064, 4096, 10000), {3072, 8192, 32, 32, 32, 96}), 2047), 1, 32000)},
      {"phi-4", WithEnds(Sized(Phi(100352, 16384, 250000), {5120, 17920, 40, 40, 10, 128}), 100257, 100265)},
      {"smollm3-3b", WithEnds(Tied(Sized(SmolLM3(), {2048, 11008, 36, 16, 4, 128})), 128000, 128012)},
      {"granite-3.1-8b", WithEnds(Tied(Sized(Granite(), {4096, 12800, 40, 32, 8, 128})), 0, 0)},
      {"gemma-2-2b", ScaledEmbedding(Sized(Gemma2(26), {2304, 9216, 26, 8, 4, 256}))},
      {"gemma-2-9b", ScaledEmbedding(Sized(Gemma2(42), {3584, 14336, 42, 16, 8, 256}))},
      {"gemma-3-1b", ScaledEmbedding(Sized(Gemma3(), {1152, 6912, 26, 4, 1, 256}))},
      {"olmo2-7b", WithEnds(Sized(Olmo2(), {4096, 11008, 32, 32, 32, 128}), 100257, 100257)},
      {"qwen2.5-7b", Sized(Qwen("qwen2", 152064, 32768), {3584, 18944, 28, 28, 4, 128})},
      {"qwen3-4b", Tied(Sized(Qwen("qwen3", 151936, 40960), {2560, 9728, 36, 32, 8, 128}))},
      {"qwen3-30b-a3b",
       WithExperts(Sized(Qwen("qwen3_moe", 151936, 40960), {2048, 6144, 48, 32, 4, 128}), 128, 8, 768)},
  };
  return table;
}

// The first layers of it alone.
void KeepLayers(int64_t layers, DecoderConfig* config) {
  config->num_hidden_layers = layers;
  const auto count = static_cast<size_t>(layers);
  if (!config->windows.empty()) config->windows.resize(count);
  if (!config->sparse_layers.empty()) config->sparse_layers.resize(count);
  if (!config->rope_layers.empty()) config->rope_layers.resize(count);
}

// The first tokens alone; of the special ones those among them.
void KeepTokens(int64_t tokens, DecoderConfig* config) {
  config->vocab_size = tokens;
  if (config->bos_token_id >= tokens) config->bos_token_id = 0;
  std::erase_if(config->eos_token_ids, [&](int32_t id) { return id >= tokens; });
}

// "layers=2" or "vocab=512" of a model.
void Cut(std::string_view model, std::string_view setting, DecoderConfig* config) {
  const size_t equals = std::min(setting.find('='), setting.size());
  const std::string_view name = setting.substr(0, equals), text = setting.substr(std::min(equals + 1, setting.size()));
  const bool of_layers = name == "layers";
  if (!of_layers && name != "vocab") {
    throw InvalidInput("random model " + Quoted(model) + ": expected layers=N or vocab=N, got " + Quoted(setting));
  }
  const int64_t least = of_layers ? 1 : 2, most = of_layers ? config->num_hidden_layers : config->vocab_size;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw InvalidInput("random model " + Quoted(model) + ": " + std::string(name) + " = " + Quoted(text) +
                       ": allowed is " + std::to_string(least) + ".." + std::to_string(most));
  }
  of_layers ? KeepLayers(value, config) : KeepTokens(value, config);
}

}  // namespace

DecoderConfig NamedDecoderConfig(std::string_view name) {
  const std::string_view shape = name.substr(0, name.find(','));
  std::string known;
  for (const NamedConfig& entry : Table()) {
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
    if (entry.name != shape) continue;
    DecoderConfig config = entry.config;
    for (size_t comma = shape.size(); comma < name.size();) {
      const size_t begin = comma + 1;
      comma = std::min(name.find(',', begin), name.size());
      Cut(name, name.substr(begin, comma - begin), &config);
    }
    return config;
  }
  throw InvalidInput("random model: expected one of " + known + ", got " + Quoted(shape));
}

std::vector<std::string_view> NamedDecoderConfigs() {
  std::vector<std::string_view> names;
  for (const NamedConfig& entry : Table()) names.push_back(entry.name);
  return names;
}

}  // namespace stoch
