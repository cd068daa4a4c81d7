// SPDX-License-Identifier: Apache-2.0
// GGUF metadata of a model in the words of Hugging Face: config.json.
#pragma once

#include <string>

#include "loader/checkpoint/gguf/file.h"

namespace stoch::gguf {

// The config.json that a Hugging Face folder of the same model would have: architectures llama (Mistral and Mixtral too),
// qwen2, qwen3, qwen3moe, phi3, smollm3, granite, olmo2, gemma2 and gemma3. Sizes of vocabulary and heads that the metadata
// leave out are those of the tensors.
// Errors: InvalidInput naming file and key: another architecture, a key that is missing or has another type, or one
//         whose meaning config.json has no word for.
std::string ConfigJson(const Model& model);

// Whether q and k are permuted in files of this model.
bool PermutesHeads(const Model& model);

}  // namespace stoch::gguf
