// SPDX-License-Identifier: Apache-2.0
// A config for readers of JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "loader/config/decoder_config.h"

namespace stoch {

// The sizes and constants that every family has, by the names of config.json. Token ids are not among them.
nlohmann::ordered_json ConfigNumbers(const DecoderConfig& config);

}  // namespace stoch
