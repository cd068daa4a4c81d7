// SPDX-License-Identifier: Apache-2.0
// How a model's blocks differ from Llama's.
#pragma once

#include <string>

#include "loader/config/decoder_config.h"

namespace stoch::cli {

// The family and what its config asks for: "Qwen3-MoE, 128 experts of 768, 8 of them a token, in 48 layers".
std::string FamilyText(const DecoderConfig& config);

}  // namespace stoch::cli
