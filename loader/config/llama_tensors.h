// The tensors of a Llama checkpoint: names and shapes, as Hugging Face stores them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "loader/config/llama_config.h"

namespace stoch {

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kLmHeadName = "lm_head.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";

// "model.layers.LAYER.PART.weight": part is self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj, input_layernorm or
// post_attention_layernorm.
std::string LayerTensorName(int64_t layer, std::string_view part);

struct LlamaTensor {
  std::string name;
  std::vector<int64_t> shape;  // {out_features, in_features}, or {hidden_size} for a norm
};

// What: every tensor a checkpoint of this config has, in order of use. A tied LM head is not listed: it is the
//       embedding, which may be stored under either name.
std::vector<LlamaTensor> LlamaTensors(const LlamaConfig& config);

}  // namespace stoch
