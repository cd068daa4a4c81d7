// SPDX-License-Identifier: Apache-2.0
// What repeated runs of a sweep say together: statistics over seeds, and differences from a reference.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "research/statistics.h"
#include "tools/stoch/research/sweep_plan.h"

namespace stoch::cli {

// One configuration over its seeds.
struct SweepSummary {
  size_t configuration = 0;
  int64_t failed = 0;
  std::vector<uint64_t> seeds;             // of rows without an error
  std::map<std::string, Summary> metrics;  // every number of their metrics, as ppl and kl.kld.mean
  std::optional<Summary> paired;           // of the means of their differences from the reference
};
// In the order of the plan. `rows`: a row for each run of the plan, in order.
std::vector<SweepSummary> SummariesOf(const SweepPlan& plan, const std::vector<std::string>& rows);

// The lines of a whole sweep: every row, with `paired` where the plan has a reference, and where it has seeds a summary of
// every configuration. Without both, the rows as they are. Requires: as SummariesOf.
// Bits: the same lines however the rows came about.
std::vector<std::string> FinishedLines(const SweepPlan& plan, const std::vector<std::string>& rows);

}  // namespace stoch::cli
