// SPDX-License-Identifier: Apache-2.0
// Memory of hardware that is not ideal: binomials of faults, streams of adders (docs/hardware.md).
#pragma once

#include <cstdint>

#include "loader/config/decoder_config.h"
#include "models/sc_model_config.h"

namespace stoch {

// Bytes of the tables of all operators that run, over caches of so many positions, those of equal operators once; 0 where all hardware is ideal. A plan's
// workspace has them.
// Errors: InvalidInput as of ScPlan.
int64_t HardwareTableBytes(const DecoderConfig& config, const ScModelConfig& sc, int64_t positions);

}  // namespace stoch
