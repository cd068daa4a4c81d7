// SPDX-License-Identifier: Apache-2.0
// The guesses that one pass over several sequences checks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculation/draft_lengths.h"
#include "engine/speculation/draft_source.h"
#include "engine/speculation/group_source.h"

namespace stoch {

// Asks the source of each turn and keeps what pays, at most turn.most of each.
// max_rows: of the pass, a row for each sequence included. times: of passes so far.
// Returns: as many lists as there are turns; empty ones where nobody guesses, or where that would not pay.
std::vector<std::vector<DraftedToken>> DraftsForTurns(std::span<const DraftTurn> turns, int64_t max_rows,
                                                      const PassTimes& times);

}  // namespace stoch
