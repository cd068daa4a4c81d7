// SPDX-License-Identifier: Apache-2.0
// The report of `stoch inspect --ranks`: what each rank of a job would hold.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/engine_options.h"
#include "engine/ranks/job.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "models/decoder/memory_plan.h"

namespace stoch::cli {

nlohmann::ordered_json MemoryJson(const MemoryBytes& bytes);
// Devices of this rank, how it uses them, and what they would hold, as JSON. Requires: engine.placement.
std::string DescribeRank(const ModelFiles& files, const Backend& backend, const EngineOptions& engine);

// Errors: InvalidInput where a rank described itself in another form.
std::string RanksText(std::span<const RankPlan> ranks, int64_t row_bytes);
nlohmann::ordered_json RanksJson(std::span<const RankPlan> ranks);

}  // namespace stoch::cli
