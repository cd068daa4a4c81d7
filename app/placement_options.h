// SPDX-License-Identifier: Apache-2.0
// Options of devices as a placement takes them.
#pragma once

#include "app/common_options.h"
#include "engine/placement.h"

namespace stoch::cli {

// --split, --device-map and --max-memory, ranks and what a server wants of its cache. Errors: InvalidInput.
PlacementOptions PlacementFrom(const DeviceOptions& options, const Backend& backend);

}  // namespace stoch::cli
