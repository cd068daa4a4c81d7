// SPDX-License-Identifier: Apache-2.0
// The rotary position table, computed once on the host with our own sine and cosine.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/stripes.h"
#include "loader/config/decoder_config.h"

namespace stoch {

// inv_freq[i] = 1 / theta^(2i / rotary_dim), each step rounded to float as transformers does, with the scaling that
// the config asks for; 0 of the pairs after rotary_dim / 2, whose cosine is 1 and sine 0: they pass RoPE as they are.
// Shapes: [head_dim / 2].
// Bits:   one computation for all backends. theta^x is correctly rounded but for the rarest cases, so it may differ
//         from PyTorch's pow by one ulp.
// Source: transformers modeling_rope_utils.py, _compute_*_parameters of 5.x. (With yarn, 4.51
//         takes max_position_embeddings / original_max_position_embeddings for the factor that is given.)
std::vector<float> RopeInverseFrequencies(const DecoderConfig& config);

// Of position p: cos(a_i) for i < head_dim / 2, then sin(a_i), a_i = float(p) * inv_freq[i] in float; sine and cosine of
// that angle in double, rounded to float, times the attention_factor of yarn or longrope.
// With an attention_multiplier, both times the root of attention_multiplier * sqrt(head_dim): scores are q k / sqrt(head_dim).
// Shapes: [rows, head_dim], row-major: positions 0, 1, 2, ..., or those of a stripe.
std::vector<float> MakeRopeTable(const DecoderConfig& config, int64_t rows, const Stripe& stripe = {});

// The tables of a model: that one and, where layers have another RoPE, one after it of local_rope_theta, or where they have
// none, of cosines 1 and sines 0, which leave q and k as they are to the bit (but for the sign of a zero).
inline int64_t NumRopeTables(const DecoderConfig& config) { return config.rope_layers.empty() ? 1 : 2; }
// Shapes: [NumRopeTables, rows, head_dim].
std::vector<float> MakeRopeTables(const DecoderConfig& config, int64_t rows, const Stripe& stripe = {});

}  // namespace stoch
