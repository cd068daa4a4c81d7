// SPDX-License-Identifier: Apache-2.0
// The tensors of a decoder's checkpoint: names and shapes, as Hugging Face stores them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "loader/config/decoder_config.h"

namespace stoch {

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kLmHeadName = "lm_head.weight";
inline constexpr std::string_view kFinalNormName = "model.norm.weight";

// "model.layers.LAYER.PART.weight", or ".bias": part is a name of the architecture table.
std::string LayerTensorName(int64_t layer, std::string_view part, std::string_view kind = "weight");
// "model.layers.LAYER.EXPERTS.EXPERT.PART.weight". Requires: linear.expert is not empty.
std::string ExpertTensorName(const DecoderConfig& config, int64_t layer, int64_t expert, const BlockLinear& linear);
// The matrix of a dense layer, or of one expert (expert >= 0).
std::string LinearTensorName(const DecoderConfig& config, int64_t layer, int64_t expert, const BlockLinear& linear);

struct DecoderTensor {
  std::string name;
  std::vector<int64_t> shape;  // {out_features, in_features}, or {length} of a norm or a bias
  int64_t layer = -1;          // of a decoder layer
  // The matrix of a checkpoint that holds its rows, from fused_first on, with those of others of its group; "": none.
  std::string fused = {};
  int64_t fused_first = 0;
  int64_t fused_rows = 0;        // of all of them
  bool adds_one = false;         // the model has 1 + w of it, where a checkpoint of Hugging Face holds w
  bool is_rotated_part = false;  // its rows are heads of which RoPE turns config.rotary_dim dimensions alone
};

// Every tensor a checkpoint of this config has, in order of use. A tied LM head is not listed: it is the embedding,
// which may be stored under either name.
std::vector<DecoderTensor> DecoderTensors(const DecoderConfig& config);

}  // namespace stoch
