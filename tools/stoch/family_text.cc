// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/family_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "loader/config/architecture.h"

namespace stoch::cli {

std::string FamilyText(const DecoderConfig& config) {
  std::string text(config.architecture->title);
  for (const BlockGroup group : kBlockGroups) {
    if (config.HasBias(group)) text += fmt::format(", biases of {}", GroupName(group));
  }
  if (VectorOf(*config.architecture, VectorId::kQNorm) != nullptr) {
    text += config.NormsAllHeads() ? ", norms of all heads of q and of k" : ", norms of the heads of q and k";
  }
  if (HasOutNorms(*config.architecture)) text += ", norms of what attention and MLP add";
  if (config.architecture->reads_multipliers) {
    text += fmt::format(", multipliers {} of embeddings, {} of residuals, {} of scores, logits / {}",
                        config.embedding_multiplier, config.residual_multiplier, config.attention_multiplier,
                        config.logits_scaling);
  }
  int64_t windowed = 0, sparse = 0, window = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    windowed += config.WindowOf(i) > 0 ? 1 : 0;
    window = std::max(window, config.WindowOf(i));
    sparse += config.HasExperts(i) ? 1 : 0;
  }
  if (config.RotaryDim() < config.head_dim)
    text += fmt::format(", RoPE of {} dimensions of a head", config.RotaryDim());
  if (config.HasGelu()) text += ", GELU";
  if (config.score_cap > 0) text += fmt::format(", scores within {}", config.score_cap);
  if (config.logit_cap > 0) text += fmt::format(", logits within {}", config.logit_cap);
  if (config.local_rope_theta > 0) {
    text += fmt::format(", RoPE of {} in layers with a window", config.local_rope_theta);
  } else if (const auto without = std::count(config.rope_layers.begin(), config.rope_layers.end(), false);
             without > 0) {
    text += fmt::format(", {} layers without RoPE", without);
  }
  if (windowed > 0) text += fmt::format(", a sliding window of {} in {} layers", window, windowed);
  if (sparse > 0) {
    text += fmt::format(", {} experts of {}, {} of them a token, in {} layers", config.num_experts,
                        config.moe_intermediate_size, config.num_experts_per_tok, sparse);
  }
  return text;
}

}  // namespace stoch::cli
