// SPDX-License-Identifier: Apache-2.0
// Runs of a sweep whose settings differ and whose operators do not: the later ones are not run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/stoch/research/sweep_plan.h"

namespace stoch::cli {

// Sets `same_as` of every run whose operators are those of an earlier one; one warning names them.
void FindEqualRuns(SweepPlan* plan);

// The row of a run from that of the run that it is the same as, if `rows` have it without an error.
std::optional<SweepRow> RowOfEqualRun(const SweepPlan& plan, const PlannedRun& run,
                                      const std::vector<std::string>& rows);
// A row that was run, because the other one is in another shard: the same bytes.
SweepRow WithSameAs(const SweepPlan& plan, const PlannedRun& run, SweepRow row);

}  // namespace stoch::cli
