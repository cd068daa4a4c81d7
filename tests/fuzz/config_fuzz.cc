// SPDX-License-Identifier: Apache-2.0
// Any text is either refused with InvalidInput or makes a config whose sizes can be multiplied. The same text is tried
// as config.json, as generation_config.json and as model.safetensors.index.json.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "kernels/base/error.h"
#include "loader/checkpoint/checkpoint.h"
#include "loader/config/decoder_config.h"

namespace {

constexpr std::string_view kValidConfig = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 4})";

void Check(bool condition) {
  if (!condition) std::abort();
}

void Try(const std::function<void()>& body) {
  try {
    body();
  } catch (const stoch::InvalidInput& error) {
    Check(std::strchr(error.what(), '\n') == nullptr);
  }
}

void CheckConfig(const stoch::DecoderConfig& config) {
  Check(config.num_attention_heads % config.num_key_value_heads == 0);
  Check(config.head_dim > 0 && config.head_dim % 2 == 0);
  Check(stoch::LinearParameters(config) > 0);
  Check(stoch::TotalParameters(config) > stoch::LinearParameters(config));
  Check(config.bos_token_id >= 0 && config.bos_token_id < config.vocab_size);
  for (const int32_t id : config.eos_token_ids) Check(id >= 0 && id < config.vocab_size);
  Check(config.rms_norm_eps > 0 && config.rope_theta > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Try([&] { CheckConfig(stoch::ParseDecoderConfig(text, "", "fuzz")); });
  Try([&] { CheckConfig(stoch::ParseDecoderConfig(kValidConfig, text, "fuzz")); });
  Try([&] {
    for (const auto& [name, shard] : stoch::ParseShardIndex(text, "fuzz")) {
      Check(!shard.empty() && shard.find('/') == std::string::npos && shard != "..");
    }
  });
  return 0;
}
