// The rotary position table, computed once on the host with our own sine and cosine.
#pragma once

#include <cstdint>
#include <vector>

#include "loader/config/llama_config.h"

namespace stoch {

// What:   inv_freq[i] = 1 / theta^(2i / head_dim), each step rounded to float as transformers does, with the llama3
//         scaling where the config asks for it.
// Shapes: [head_dim / 2].
// Bits:   one computation for all backends. theta^x is correctly rounded but for the rarest cases, so it may differ
//         from PyTorch's pow by one ulp.
// Source: transformers modeling_rope_utils.py, _compute_default_rope_parameters and _compute_llama3_parameters.
std::vector<float> RopeInverseFrequencies(const LlamaConfig& config);

// What:   row p: cos(a_i) for i < head_dim / 2, then sin(a_i), a_i = float(p) * inv_freq[i] in float; sine and cosine
//         of that angle in double, rounded to float.
// Shapes: [positions, head_dim], row-major.
std::vector<float> MakeRopeTable(const LlamaConfig& config, int64_t positions);

}  // namespace stoch
