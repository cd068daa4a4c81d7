// SPDX-License-Identifier: Apache-2.0
// What GGUF metadata say about a model, in the words of Hugging Face: config.json and tensor names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "loader/checkpoint/gguf/file.h"

namespace stoch::gguf {

// The config.json that a Hugging Face folder of the same model would have: architectures llama (Mistral and Mixtral too),
// qwen2, qwen3, qwen3moe, phi3, smollm3, granite, olmo2, gemma2 and gemma3. Sizes of vocabulary and heads that the metadata
// leave out are those of the tensors.
// Errors: InvalidInput naming file and key: another architecture, a key that is missing or has another type, or one
//         whose meaning config.json has no word for.
std::string ConfigJson(const Model& model);

// Where a tensor of a Hugging Face checkpoint is.
struct TensorName {
  std::string name;                                               // "" if GGUF has no such tensor
  int64_t expert = -1;                                            // the slice of a tensor of all experts
  enum class Heads { kNone, kQuery, kKey } heads = Heads::kNone;  // whose rows llama.cpp permutes, where PermutesHeads
};
// has_out_norms: as Architecture has; the norm named post_attention_layernorm is then one of that output.
TensorName NameInGguf(std::string_view hugging_face_name, bool has_out_norms = false);

// Whether a tensor holds nothing that the model needs from it: factors of RoPE repeat what ConfigJson says.
bool IsIgnored(std::string_view name);

// Whether q and k are permuted in files of this model.
bool PermutesHeads(const Model& model);

}  // namespace stoch::gguf
