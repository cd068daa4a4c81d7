#include "loader/config/llama_tensors.h"

namespace stoch {

std::string LayerTensorName(int64_t layer, std::string_view part) {
  return "model.layers." + std::to_string(layer) + "." + std::string(part) + ".weight";
}

std::vector<LlamaTensor> LlamaTensors(const LlamaConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const LlamaTensor parts[] = {
      {"input_layernorm", {hidden}},
      {"self_attn.q_proj", {q_rows, hidden}},
      {"self_attn.k_proj", {kv_rows, hidden}},
      {"self_attn.v_proj", {kv_rows, hidden}},
      {"self_attn.o_proj", {hidden, q_rows}},
      {"post_attention_layernorm", {hidden}},
      {"mlp.gate_proj", {intermediate, hidden}},
      {"mlp.up_proj", {intermediate, hidden}},
      {"mlp.down_proj", {hidden, intermediate}},
  };
  std::vector<LlamaTensor> tensors;
  tensors.push_back({std::string(kEmbeddingName), {config.vocab_size, hidden}});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const LlamaTensor& part : parts) tensors.push_back({LayerTensorName(layer, part.name), part.shape});
  }
  tensors.push_back({std::string(kFinalNormName), {hidden}});
  if (!config.tie_word_embeddings) tensors.push_back({std::string(kLmHeadName), {config.vocab_size, hidden}});
  return tensors;
}

}  // namespace stoch
