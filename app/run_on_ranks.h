// SPDX-License-Identifier: Apache-2.0
// Commands on the ranks of a job: rank 0 runs the command, the others follow.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/common_options.h"
#include "engine/engine.h"
#include "engine/ranks/job.h"

namespace stoch::cli {

// body(), as rank 0 where --ranks was given; of another rank the layers that rank 0 tells it to run, of `model` ("": rank
// 0's). Without --ranks a launcher of several processes is warned about.
// Errors: InvalidInput for one process, or more than there may be. After a lost rank the process ends with exit code 3 even
// where MPI does not end it.
ExitCode RunOnRanks(DeviceOptions* devices, const std::string& model, const std::function<ExitCode()>& body);
// Engine::Open with layers on all ranks. Requires: devices.ranks.job.
std::unique_ptr<Engine> OpenOnRanks(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                    const DeviceOptions& devices);

// Asks all ranks what Engine::Open would have them hold, once they agree on program and model. Nothing is loaded.
// Requires: devices.ranks.job. Errors: InvalidInput naming the rank that has another one.
std::vector<RankPlan> PlanRanks(const Backend& backend, const ModelFiles& files, EngineOptions options,
                                const DeviceOptions& devices);

}  // namespace stoch::cli
