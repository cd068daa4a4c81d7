// SPDX-License-Identifier: Apache-2.0
// The plan of every rank for a model that they agree on.
#pragma once

#include <vector>

#include "app/common_options.h"
#include "engine/ranks/job.h"

namespace stoch::cli {

// Asks all ranks what Engine::Open would have them hold, once they agree on program and model. Nothing is loaded.
// Requires: devices.ranks.job. Errors: InvalidInput naming the rank that has another one.
std::vector<RankPlan> PlanRanks(const Backend& backend, const ModelFiles& files, EngineOptions options,
                                const DeviceOptions& devices);

}  // namespace stoch::cli
