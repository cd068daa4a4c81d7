// SPDX-License-Identifier: Apache-2.0
// The keys of config.json about rotary positions. Internal to this folder.
#pragma once

#include "loader/config/config_keys.h"
#include "loader/config/decoder_config.h"

namespace stoch {

inline constexpr int64_t kMaxPositions = int64_t{1} << 26;

// Reads rope_theta, rope_scaling, rope_parameters and partial_rotary_factor. Requires: sizes are parsed.
void ParseRope(const ConfigKeys& keys, DecoderConfig* config);

}  // namespace stoch
