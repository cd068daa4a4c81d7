// SPDX-License-Identifier: Apache-2.0
// The one table of decoder families: what a block consists of. Tensor lists, loading, shards, plans and the operators
// of --sc loop over it; nothing else spells a matrix or a norm of a block.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// The matrices of a block. Expert feed-forward networks have the last three, once for each expert.
enum class LinearId : uint8_t { kQProj, kKProj, kVProj, kOProj, kGateProj, kUpProj, kDownProj };
inline constexpr int kNumBlockLinears = 7;

// What --sc, errors and reports call a matrix, and what it is for.
struct LinearName {
  std::string_view name;
  std::string_view help;
};
std::span<const LinearName> LinearNames();  // in the order of LinearId

// Matrices of one group multiply the same activations; their outputs are side by side.
enum class BlockGroup : uint8_t { kQkv, kO, kGateUp, kDown };
inline constexpr int kNumBlockGroups = 4;
inline constexpr BlockGroup kBlockGroups[] = {BlockGroup::kQkv, BlockGroup::kO, BlockGroup::kGateUp, BlockGroup::kDown};
std::string_view GroupName(BlockGroup group);  // "qkv_proj", "o_proj", "gate_up_proj", "down_proj"

// What the length of a side of a tensor is, of a whole model or of a device's share.
enum class Axis : uint8_t { kHidden, kHeads, kKvHeads, kIntermediate, kExpertIntermediate, kHeadDim };

struct BlockLinear {
  LinearId id;
  std::string_view tensor;  // "self_attn.q_proj"
  Axis out, in;
  BlockGroup group;
  std::string_view expert = "";  // its name within an expert, "" where experts have none
};

// The vectors of norms.
// kAttentionOutNorm, kMlpOutNorm: of what a half of the block adds to the residual stream, before it is added.
enum class VectorId : uint8_t { kInputNorm, kQNorm, kKNorm, kPostAttentionNorm, kAttentionOutNorm, kMlpOutNorm };
inline constexpr int kNumBlockVectors = 6;

struct BlockVector {
  VectorId id;
  std::string_view tensor;  // "input_layernorm"
  Axis length;
  BlockGroup before;  // the group that works on what it normalizes, or on what comes of that; or the last one
};

// Which layers have a sliding window where layer_types does not say.
enum class WindowRule : uint8_t {
  kNone,        // no layer: sliding_window is no key of the family
  kEveryLayer,  // sliding_window is a number: every layer
  kFromLayer,   // use_sliding_window: layers from max_window_layers on
  kWhereUsed,   // use_sliding_window: every layer
  kEvenLayers,  // sliding_window: layers 0, 2, 4, ...
  kPattern,     // sliding_window: all but each sliding_window_pattern-th, which has RoPE of its own
};

// What the gate of a feed-forward network goes through before it multiplies.
enum class Activation : uint8_t { kSilu, kGeluTanh };

struct Architecture {
  std::string_view model_type;           // "llama"
  std::string_view transformers_class;   // "LlamaForCausalLM"
  std::string_view title;                // "Llama"
  std::span<const BlockLinear> linears;  // by group, in the order of BlockGroup
  std::span<const BlockVector> vectors;
  // Checkpoints hold the matrices of these groups as one tensor of this name, in the order of the group; "": each its own.
  std::string_view fused_qkv = "";
  std::string_view fused_gate_up = "";
  // Biases: of q, k and v always, or where attention_bias (with o) or mlp_bias says so.
  bool has_qkv_bias = false;
  bool reads_attention_bias = false;
  bool reads_mlp_bias = false;
  // A mixture of experts, with the tensors "router" and "experts.N.NAME".
  bool has_experts = false;
  std::string_view router = "";
  std::string_view experts = "";
  int64_t default_experts = 128;
  int64_t default_experts_per_token = 8;
  // 0: an expert is as wide as intermediate_size, and the weights of the chosen always add up to 1. Else what absence of
  // moe_intermediate_size means, and norm_topk_prob says so.
  int64_t default_expert_size = 768;
  // RoPE turns the first dimensions of a head alone, where partial_rotary_factor says so, and may be of type longrope.
  bool has_phi_rope = false;
  bool reads_multipliers = false;  // embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling
  Activation activation = Activation::kSilu;
  bool adds_one_to_norms = false;        // checkpoints hold w of norms that multiply by 1 + w; GGUF files hold 1 + w
  bool scales_embedding = false;         // by sqrt(hidden_size)
  bool reads_caps = false;               // query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping
  bool has_layers_without_rope = false;  // no_rope_layers and no_rope_layer_interval say which
  // What absent keys of config.json mean. 0: as many KV heads as heads; hidden_size / heads.
  int64_t default_kv_heads = 0;
  int64_t default_head_dim = 0;
  bool default_tied = false;
  double default_theta = 10000;
  double default_local_theta = 0;  // WindowRule::kPattern: of layers with a window, rope_local_base_freq
  double default_score_cap = 0;    // 0: none
  double default_logit_cap = 0;
  int32_t default_eos = -1;  // -1: none
  double default_eps = 1e-6;
  WindowRule window = WindowRule::kNone;
  int64_t default_window = 0;  // kEveryLayer, kEvenLayers, kPattern, where the key is absent
};

std::span<const Architecture> Architectures();  // Llama first
inline const Architecture& LlamaArchitecture() { return Architectures().front(); }

// By model_type, or by transformers_class; nullptr where the table has none.
const Architecture* FindArchitecture(std::string_view model_type);
const Architecture* FindArchitectureOfClass(std::string_view transformers_class);
std::string KnownModelTypes();  // "llama", "qwen2", ...

// The rows of a group, which are next to each other.
std::span<const BlockLinear> LinearsOf(const Architecture& architecture, BlockGroup group);
// The tensor that holds all matrices of a group; "" where each has its own.
std::string_view FusedTensor(const Architecture& architecture, BlockGroup group);
// The row of a norm; nullptr where the family has none.
const BlockVector* VectorOf(const Architecture& architecture, VectorId id);
// Whether what each half of a block computes is normed before it is added to the residual stream.
bool HasOutNorms(const Architecture& architecture);

}  // namespace stoch
