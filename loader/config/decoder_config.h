// SPDX-License-Identifier: Apache-2.0
// The shape of a decoder, as its config.json says (Hugging Face names).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loader/config/architecture.h"
#include "loader/config/rope_scaling.h"

namespace stoch {

struct DecoderConfig {
  const Architecture* architecture = &LlamaArchitecture();
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
  std::optional<RopeScaling> rope_scaling;
  int64_t rotary_dim = 0;  // first dimensions of a head that RoPE turns; 0: all of head_dim
  bool tie_word_embeddings = false;
  std::array<bool, kNumBlockGroups> biases = {};  // by BlockGroup: its linears have biases
  // Which layers have the RoPE of rope_theta and rope_scaling; empty: all. Others have one of local_rope_theta, or none
  // where that is 0.
  std::vector<bool> rope_layers;
  double local_rope_theta = 0;
  std::vector<int64_t> windows;  // of each layer's sliding window, 0: none; empty: of no layer
  // Factors of the embedding's rows, of what each half of a block adds to the residual stream, and of scores in place of
  // 1 / sqrt(head_dim) (0: that); logits are divided by the last.
  double embedding_multiplier = 1;
  double residual_multiplier = 1;
  double attention_multiplier = 0;
  double logits_scaling = 1;
  // x becomes cap * tanh(x / cap): of scores before the softmax, and of logits; 0: it stays.
  double score_cap = 0;
  double logit_cap = 0;
  // A mixture of experts.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  std::vector<bool> sparse_layers;  // which layers have experts; empty: none
  int32_t bos_token_id = 1;
  std::vector<int32_t> eos_token_ids;

  int64_t RotaryDim() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  bool HasMainRope(int64_t layer) const { return rope_layers.empty() || rope_layers[static_cast<size_t>(layer)]; }
  int64_t WindowOf(int64_t layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  bool HasExperts(int64_t layer) const { return !sparse_layers.empty() && sparse_layers[static_cast<size_t>(layer)]; }
  bool HasExperts() const;      // in any layer
  bool HasDenseLayers() const;  // with a feed-forward network of intermediate_size
  // Whether what a half of a block adds is normed or scaled before it is added.
  bool HasBranches() const;
  bool HasGelu() const { return architecture->activation == Activation::kGeluTanh; }
  bool NormsAllHeads() const;  // q, and k, of all heads together
  bool HasBias(BlockGroup group) const { return biases[static_cast<size_t>(group)]; }
};

// Parses config.json text (and generation_config.json text, empty if absent, whose eos ids are added), in the forms of
// transformers 4 and 5. `where` is their folder, for messages. Absent optional keys mean what transformers makes of
// them for the model_type.
// Errors: InvalidInput naming file, key, expected and got, and what a key would need that is not supported: wrong
//         type, missing or out-of-range sizes (no product of accepted sizes overflows), unknown architecture,
//         unsupported activation, quantization or rope type.
DecoderConfig ParseDecoderConfig(std::string_view config_json, std::string_view generation_config_json,
                                 const std::string& where);

// The shape of random:NAME: llama-3.1-8b, qwen3-4b, ...; NAME,layers=N,vocab=N has its first layers and tokens alone.
// Errors: InvalidInput listing the known names, or what is allowed.
DecoderConfig NamedDecoderConfig(std::string_view name);
std::vector<std::string_view> NamedDecoderConfigs();

// The length of a side; kIntermediate that of a dense layer.
int64_t SizeOf(const DecoderConfig& config, Axis axis);
// The axis in a layer with experts: of kIntermediate, that of one expert.
constexpr Axis ExpertAxis(Axis axis) { return axis == Axis::kIntermediate ? Axis::kExpertIntermediate : axis; }

// Parameters in decoder linears (of all experts, without routers), and in everything.
int64_t LinearParameters(const DecoderConfig& config);
int64_t TotalParameters(const DecoderConfig& config);

}  // namespace stoch
