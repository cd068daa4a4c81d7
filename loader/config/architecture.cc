// SPDX-License-Identifier: Apache-2.0
#include "loader/config/architecture.h"

#include <algorithm>
#include <array>

namespace stoch {
namespace {

using enum Axis;

constexpr std::array<LinearName, kNumBlockLinears> kNames = {{
    {"q_proj", "queries of attention"},
    {"k_proj", "keys"},
    {"v_proj", "values"},
    {"o_proj", "output of attention"},
    {"gate_proj", "gate of the feed-forward network"},
    {"up_proj", "its other half"},
    {"down_proj", "output of the feed-forward network"},
}};

// Every family so far calls its matrices so.
constexpr BlockLinear kLinears[] = {
    {LinearId::kQProj, "self_attn.q_proj", kHeads, kHidden, BlockGroup::kQkv},
    {LinearId::kKProj, "self_attn.k_proj", kKvHeads, kHidden, BlockGroup::kQkv},
    {LinearId::kVProj, "self_attn.v_proj", kKvHeads, kHidden, BlockGroup::kQkv},
    {LinearId::kOProj, "self_attn.o_proj", kHidden, kHeads, BlockGroup::kO},
    {LinearId::kGateProj, "mlp.gate_proj", kIntermediate, kHidden, BlockGroup::kGateUp, "gate_proj"},
    {LinearId::kUpProj, "mlp.up_proj", kIntermediate, kHidden, BlockGroup::kGateUp, "up_proj"},
    {LinearId::kDownProj, "mlp.down_proj", kHidden, kIntermediate, BlockGroup::kDown, "down_proj"},
};

// With the names that Mixtral's experts have.
constexpr BlockLinear kMixtralLinears[] = {
    {LinearId::kQProj, "self_attn.q_proj", kHeads, kHidden, BlockGroup::kQkv},
    {LinearId::kKProj, "self_attn.k_proj", kKvHeads, kHidden, BlockGroup::kQkv},
    {LinearId::kVProj, "self_attn.v_proj", kKvHeads, kHidden, BlockGroup::kQkv},
    {LinearId::kOProj, "self_attn.o_proj", kHidden, kHeads, BlockGroup::kO},
    {LinearId::kGateProj, "mlp.gate_proj", kIntermediate, kHidden, BlockGroup::kGateUp, "w1"},
    {LinearId::kUpProj, "mlp.up_proj", kIntermediate, kHidden, BlockGroup::kGateUp, "w3"},
    {LinearId::kDownProj, "mlp.down_proj", kHidden, kIntermediate, BlockGroup::kDown, "w2"},
};

constexpr BlockVector kNorms[] = {
    {VectorId::kInputNorm, "input_layernorm", kHidden, BlockGroup::kQkv},
    {VectorId::kPostAttentionNorm, "post_attention_layernorm", kHidden, BlockGroup::kGateUp},
};

// With a norm of every head of q and k.
constexpr BlockVector kHeadNorms[] = {
    {VectorId::kInputNorm, "input_layernorm", kHidden, BlockGroup::kQkv},
    {VectorId::kQNorm, "self_attn.q_norm", kHeadDim, BlockGroup::kO},
    {VectorId::kKNorm, "self_attn.k_norm", kHeadDim, BlockGroup::kO},
    {VectorId::kPostAttentionNorm, "post_attention_layernorm", kHidden, BlockGroup::kGateUp},
};

// No norm in front of a half of the block, one behind it; and one of all heads of q together, and of k.
constexpr BlockVector kOutNorms[] = {
    {VectorId::kQNorm, "self_attn.q_norm", kHeads, BlockGroup::kO},
    {VectorId::kKNorm, "self_attn.k_norm", kKvHeads, BlockGroup::kO},
    {VectorId::kAttentionOutNorm, "post_attention_layernorm", kHidden, BlockGroup::kGateUp},
    {VectorId::kMlpOutNorm, "post_feedforward_layernorm", kHidden, BlockGroup::kDown},
};

// Norms in front of both halves of the block and behind them.
constexpr BlockVector kFourNorms[] = {
    {VectorId::kInputNorm, "input_layernorm", kHidden, BlockGroup::kQkv},
    {VectorId::kAttentionOutNorm, "post_attention_layernorm", kHidden, BlockGroup::kGateUp},
    {VectorId::kPostAttentionNorm, "pre_feedforward_layernorm", kHidden, BlockGroup::kGateUp},
    {VectorId::kMlpOutNorm, "post_feedforward_layernorm", kHidden, BlockGroup::kDown},
};
constexpr BlockVector kSixNorms[] = {
    {VectorId::kInputNorm, "input_layernorm", kHidden, BlockGroup::kQkv},
    {VectorId::kQNorm, "self_attn.q_norm", kHeadDim, BlockGroup::kO},
    {VectorId::kKNorm, "self_attn.k_norm", kHeadDim, BlockGroup::kO},
    {VectorId::kAttentionOutNorm, "post_attention_layernorm", kHidden, BlockGroup::kGateUp},
    {VectorId::kPostAttentionNorm, "pre_feedforward_layernorm", kHidden, BlockGroup::kGateUp},
    {VectorId::kMlpOutNorm, "post_feedforward_layernorm", kHidden, BlockGroup::kDown},
};

constexpr Architecture kArchitectures[] = {
    {.model_type = "llama",
     .transformers_class = "LlamaForCausalLM",
     .title = "Llama",
     .linears = kLinears,
     .vectors = kNorms,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .default_eos = 2},
    {.model_type = "qwen2",
     .transformers_class = "Qwen2ForCausalLM",
     .title = "Qwen2",
     .linears = kLinears,
     .vectors = kNorms,
     .has_qkv_bias = true,
     .default_kv_heads = 32,
     .window = WindowRule::kFromLayer},
    {.model_type = "qwen3",
     .transformers_class = "Qwen3ForCausalLM",
     .title = "Qwen3",
     .linears = kLinears,
     .vectors = kHeadNorms,
     .reads_attention_bias = true,
     .default_kv_heads = 32,
     .default_head_dim = 128,
     .window = WindowRule::kFromLayer},
    {.model_type = "qwen3_moe",
     .transformers_class = "Qwen3MoeForCausalLM",
     .title = "Qwen3-MoE",
     .linears = kLinears,
     .vectors = kHeadNorms,
     .reads_attention_bias = true,
     .has_experts = true,
     .router = "mlp.gate",
     .experts = "mlp.experts",
     .default_kv_heads = 4,
     .window = WindowRule::kWhereUsed},
    {.model_type = "mistral",
     .transformers_class = "MistralForCausalLM",
     .title = "Mistral",
     .linears = kLinears,
     .vectors = kNorms,
     .default_kv_heads = 8,
     .default_eos = 2,
     .window = WindowRule::kEveryLayer,
     .default_window = 4096},
    {.model_type = "mixtral",
     .transformers_class = "MixtralForCausalLM",
     .title = "Mixtral",
     .linears = kMixtralLinears,
     .vectors = kNorms,
     .has_experts = true,
     .router = "block_sparse_moe.gate",
     .experts = "block_sparse_moe.experts",
     .default_experts = 8,
     .default_experts_per_token = 2,
     .default_expert_size = 0,
     .default_kv_heads = 8,
     .default_eos = 2,
     .window = WindowRule::kEveryLayer},
    {.model_type = "phi3",
     .transformers_class = "Phi3ForCausalLM",
     .title = "Phi-3",
     .linears = kLinears,
     .vectors = kNorms,
     .fused_qkv = "self_attn.qkv_proj",
     .fused_gate_up = "mlp.gate_up_proj",
     .has_phi_rope = true,
     .default_eos = 32000,
     .default_eps = 1e-5,
     .window = WindowRule::kEveryLayer},
    {.model_type = "smollm3",
     .transformers_class = "SmolLM3ForCausalLM",
     .title = "SmolLM3",
     .linears = kLinears,
     .vectors = kNorms,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .has_layers_without_rope = true,
     .default_kv_heads = 4,
     .default_tied = true,
     .default_theta = 2e6,
     .default_eos = 128001},
    {.model_type = "granite",
     .transformers_class = "GraniteForCausalLM",
     .title = "Granite",
     .linears = kLinears,
     .vectors = kNorms,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .reads_multipliers = true,
     .default_eos = 2},
    {.model_type = "olmo2",
     .transformers_class = "Olmo2ForCausalLM",
     .title = "OLMo2",
     .linears = kLinears,
     .vectors = kOutNorms,
     .reads_attention_bias = true,
     .default_eos = 50279,
     .default_eps = 1e-5},
    {.model_type = "gemma2",
     .transformers_class = "Gemma2ForCausalLM",
     .title = "Gemma 2",
     .linears = kLinears,
     .vectors = kFourNorms,
     .reads_attention_bias = true,
     .activation = Activation::kGeluTanh,
     .adds_one_to_norms = true,
     .scales_embedding = true,
     .reads_caps = true,
     .default_kv_heads = 4,
     .default_head_dim = 256,
     .default_tied = true,
     .default_score_cap = 50,
     .default_logit_cap = 30,
     .default_eos = 1,
     .window = WindowRule::kEvenLayers,
     .default_window = 4096},
    {.model_type = "gemma3_text",
     .transformers_class = "Gemma3ForCausalLM",
     .title = "Gemma 3",
     .linears = kLinears,
     .vectors = kSixNorms,
     .reads_attention_bias = true,
     .activation = Activation::kGeluTanh,
     .adds_one_to_norms = true,
     .scales_embedding = true,
     .reads_caps = true,
     .default_kv_heads = 4,
     .default_head_dim = 256,
     .default_tied = true,
     .default_theta = 1e6,
     .default_local_theta = 1e4,
     .default_eos = 1,
     .window = WindowRule::kPattern,
     .default_window = 4096},
};

const Architecture* Find(std::string_view Architecture::*key, std::string_view value) {
  for (const Architecture& row : kArchitectures) {
    if (row.*key == value) return &row;
  }
  return nullptr;
}

}  // namespace

std::span<const LinearName> LinearNames() { return kNames; }

std::string_view GroupName(BlockGroup group) {
  switch (group) {
    case BlockGroup::kQkv: return "qkv_proj";
    case BlockGroup::kO: return "o_proj";
    case BlockGroup::kGateUp: return "gate_up_proj";
    case BlockGroup::kDown: return "down_proj";
  }
  return "?";
}

std::span<const Architecture> Architectures() { return kArchitectures; }

const Architecture* FindArchitecture(std::string_view model_type) {
  return Find(&Architecture::model_type, model_type);
}
const Architecture* FindArchitectureOfClass(std::string_view transformers_class) {
  return Find(&Architecture::transformers_class, transformers_class);
}

std::string KnownModelTypes() {
  std::string text;
  for (const Architecture& row : kArchitectures) {
    text += (text.empty() ? "\"" : ", \"") + std::string(row.model_type) + '"';
  }
  return text;
}

std::span<const BlockLinear> LinearsOf(const Architecture& architecture, BlockGroup group) {
  const auto is_ours = [group](const BlockLinear& linear) { return linear.group == group; };
  const auto begin = std::find_if(architecture.linears.begin(), architecture.linears.end(), is_ours);
  const auto end = std::find_if_not(begin, architecture.linears.end(), is_ours);
  return {begin, end};
}

std::string_view FusedTensor(const Architecture& architecture, BlockGroup group) {
  switch (group) {
    case BlockGroup::kQkv: return architecture.fused_qkv;
    case BlockGroup::kGateUp: return architecture.fused_gate_up;
    case BlockGroup::kO:
    case BlockGroup::kDown: break;
  }
  return "";
}

bool HasOutNorms(const Architecture& architecture) {
  return VectorOf(architecture, VectorId::kAttentionOutNorm) != nullptr;
}

const BlockVector* VectorOf(const Architecture& architecture, VectorId id) {
  for (const BlockVector& vector : architecture.vectors) {
    if (vector.id == id) return &vector;
  }
  return nullptr;
}

}  // namespace stoch
