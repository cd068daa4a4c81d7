// SPDX-License-Identifier: Apache-2.0
// Shards of a sweep as the one file that a single run writes.
#pragma once

#include <string>
#include <vector>

#include "tools/stoch/research/sweep_plan.h"

namespace stoch::cli {

// Rows of complete shards 0, 1, ..., n - 1 of a sweep, in order, as one run writes them. Without the plan, shards that all
// lack their last rows look complete.
// Errors: InvalidInput where sizes or keys cannot be those of n shards in this order, or a line is torn.
std::string MergeShards(const std::vector<std::string>& names, const std::vector<std::string>& texts);

struct MergedSweep {
  std::vector<std::string> rows;     // of all runs in order, where nothing is missing
  std::vector<size_t> missing_runs;  // of the plan, in order
  std::vector<size_t> failed_runs;   // whose rows say an error
};
// The rows of a plan from files that have them in any order and number.
// Errors: InvalidInput where a row is not of this plan, is there twice, or a line is torn.
MergedSweep MergeWithPlan(const SweepPlan& plan, const std::vector<std::string>& names,
                          const std::vector<std::string>& texts);

// The command that makes a missing run: the shard that it belongs to, where the files are shards in order, else a shard
// of that run alone.
std::string CommandOfRun(const SweepPlan& plan, const std::string& plan_name, size_t run,
                         const std::vector<std::string>& names, const std::vector<std::string>& texts);

// Whether a row has a seed or is of a part of a run, and rows that say an error. Requires: what MergeShards returned.
bool HasSeeds(const std::string& text);
bool HasParts(const std::string& text);
size_t CountFailed(const std::string& text);

}  // namespace stoch::cli
