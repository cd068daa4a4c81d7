// SPDX-License-Identifier: Apache-2.0
// A small config.json to change, and what is expected of one that is refused.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "loader/config/decoder_config.h"
#include "tests/support/expect_invalid.h"

namespace stoch::test {

inline DecoderConfig Parse(const nlohmann::json& config, const std::string& generation = "") {
  return ParseDecoderConfig(config.dump(), generation, "model");
}

inline nlohmann::json Base() {
  return {{"model_type", "llama"},    {"hidden_size", 64}, {"intermediate_size", 172},      {"num_hidden_layers", 2},
          {"num_attention_heads", 8}, {"vocab_size", 96},  {"max_position_embeddings", 128}};
}

inline nlohmann::json With(const char* key, const nlohmann::json& value) {
  nlohmann::json config = Base();
  config[key] = value;
  return config;
}

inline void ExpectRefused(const nlohmann::json& config, std::initializer_list<std::string_view> parts) {
  ExpectInvalid([&] { Parse(config); }, parts);
  ExpectInvalid([&] { Parse(config); }, {"model/config.json: "});
}

}  // namespace stoch::test
