// SPDX-License-Identifier: Apache-2.0
// Notices for users of gates of free-running streams: correlated streams are not multiplied.
#pragma once

#include <string>
#include <vector>

#include "models/sc_model_config.h"

namespace stoch {

// A sentence for each default source that was another before, and for streams so correlated (mean SCC over four masks
// beyond 0.2) that the gate does not multiply them; one for a gate and source.
// Requires: a configuration that Validate takes.
std::vector<std::string> GateNotices(const ScModelConfig& sc);

}  // namespace stoch
