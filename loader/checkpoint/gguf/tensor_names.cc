// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/gguf/tensor_names.h"

#include <charconv>
#include <utility>

namespace stoch::gguf {

TensorName NameInGguf(std::string_view name, bool has_out_norms) {
  constexpr std::string_view kLayers = "model.layers.";
  constexpr std::string_view kExperts[] = {"mlp.experts.", "block_sparse_moe.experts."};
  constexpr std::pair<std::string_view, std::string_view> kWhole[] = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"}};
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {{"input_layernorm", "attn_norm"},
                                                                      {"self_attn.q_proj", "attn_q"},
                                                                      {"self_attn.k_proj", "attn_k"},
                                                                      {"self_attn.v_proj", "attn_v"},
                                                                      {"self_attn.o_proj", "attn_output"},
                                                                      {"self_attn.q_norm", "attn_q_norm"},
                                                                      {"self_attn.k_norm", "attn_k_norm"},
                                                                      {"post_attention_layernorm", "ffn_norm"},
                                                                      {"mlp.gate_proj", "ffn_gate"},
                                                                      {"mlp.up_proj", "ffn_up"},
                                                                      {"pre_feedforward_layernorm", "ffn_norm"},
                                                                      {"mlp.down_proj", "ffn_down"},
                                                                      {"mlp.gate", "ffn_gate_inp"},
                                                                      {"block_sparse_moe.gate", "ffn_gate_inp"},
                                                                      {"self_attn.qkv_proj", "attn_qkv"},
                                                                      {"mlp.gate_up_proj", "ffn_up"}};
  constexpr std::pair<std::string_view, std::string_view> kExpertParts[] = {
      {"gate_proj", "ffn_gate"}, {"up_proj", "ffn_up"}, {"down_proj", "ffn_down"},
      {"w1", "ffn_gate"},        {"w3", "ffn_up"},      {"w2", "ffn_down"}};
  for (const auto& [whole, gguf] : kWhole) {
    if (whole == name) return {std::string(gguf)};
  }
  if (!name.starts_with(kLayers)) return {};
  name.remove_prefix(kLayers.size());
  const size_t dot = name.find('.');
  const size_t last = name.rfind('.');
  if (dot == std::string_view::npos || last == dot) return {};
  const std::string block = "blk." + std::string(name.substr(0, dot)) + ".";
  const std::string suffix(name.substr(last));  // ".weight" or ".bias"
  std::string_view part = name.substr(dot + 1, last - dot - 1);
  if (has_out_norms) {
    if (part == "post_attention_layernorm") return {block + "post_attention_norm" + suffix};
    if (part == "post_feedforward_layernorm") return {block + "post_ffw_norm" + suffix};
  }
  for (const std::string_view experts : kExperts) {
    if (!part.starts_with(experts)) continue;
    part.remove_prefix(experts.size());
    int64_t expert = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), expert);
    if (error != std::errc() || end == part.data() + part.size() || expert < 0) return {};
    part.remove_prefix(static_cast<size_t>(end - part.data()) + 1);
    for (const auto& [expert_part, gguf] : kExpertParts) {
      if (expert_part != part) continue;
      const std::string matrix = block + std::string(gguf);
      return {matrix + "_exps" + suffix, expert, matrix + "." + std::to_string(expert) + suffix};
    }
    return {};
  }
  for (const auto& [hugging_face, gguf] : kParts) {
    if (hugging_face != part) continue;
    TensorName result{block + std::string(gguf) + suffix};
    if (part == "self_attn.q_proj") result.heads = TensorName::Heads::kQuery;
    if (part == "self_attn.k_proj") result.heads = TensorName::Heads::kKey;
    return result;
  }
  return {};
}

bool IsIgnored(std::string_view name) { return name == kRopeFactors || name == kShortFactors || name == kLongFactors; }

}  // namespace stoch::gguf
