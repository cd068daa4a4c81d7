// SPDX-License-Identifier: Apache-2.0
// Runs of a sweep that several machines divide by windows: a row for some windows of a run, and the row of the run from them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/logit_comparison.h"
#include "tools/stoch/research/sweep_plan.h"

namespace stoch::cli {

inline constexpr const char* kSweepPartSchema = "stoch-sweep-part-v1";

// Errors: InvalidInput where the plan has windows_per_row and a metric that whole runs alone have, or rows would be too large.
void CheckParts(const SweepPlan& plan);

// The plan whose runs are parts of windows_per_row windows, those of a run one after the other; the plan itself without
// windows_per_row.
SweepPlan DivideRuns(SweepPlan plan);

// Numbers of some windows, from which those of all follow.
struct SweepPart {
  std::vector<double> nll;                   // of every prediction, in order
  std::vector<LogitComparison> comparisons;  // with kl, else empty
  std::optional<ScCost> cost;                // none of an exact run
};
// metrics {windows [first, count], nll, kl {kld, logprob, base_logprob, top, base_top}} and sc_cost {calls, operators,
// tile_cycles} of a row.
void AddPart(const PlannedRun& run, const SweepPart& part, nlohmann::ordered_json* row);

// The rows of `plan`, as single runs write them, from those of all runs of `parts`, which is DivideRuns of it.
// Errors: InvalidInput naming a row that is not the one of its part.
std::vector<std::string> JoinParts(const SweepPlan& plan, const SweepPlan& parts, std::span<const std::string> rows);

}  // namespace stoch::cli
