// SPDX-License-Identifier: Apache-2.0
#include "loader/config/config_json.h"

#include <nlohmann/json.hpp>

namespace stoch {

nlohmann::ordered_json ConfigNumbers(const DecoderConfig& config) {
  return {{"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"rope_theta", config.rope_theta},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

}  // namespace stoch
