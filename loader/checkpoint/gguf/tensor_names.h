// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a Hugging Face checkpoint are in GGUF files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stoch::gguf {

// Factors of RoPE, of which ConfigJson makes settings.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";
inline constexpr std::string_view kShortFactors = "rope_factors_short.weight";
inline constexpr std::string_view kLongFactors = "rope_factors_long.weight";

// Where a tensor of a Hugging Face checkpoint is.
struct TensorName {
  std::string name;      // "" if GGUF has no such tensor
  int64_t expert = -1;   // the slice of a tensor of all experts
  std::string own = {};  // of that expert alone, in files from before April 2024
  enum class Heads { kNone, kQuery, kKey } heads = Heads::kNone;  // whose rows llama.cpp permutes, where PermutesHeads
};
// has_out_norms: as Architecture has; the norm named post_attention_layernorm is then one of that output.
TensorName NameInGguf(std::string_view hugging_face_name, bool has_out_norms = false);

// Whether a tensor holds nothing that the model needs from it: factors of RoPE repeat what ConfigJson says.
bool IsIgnored(std::string_view name);

}  // namespace stoch::gguf
