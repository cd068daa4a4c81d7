// SPDX-License-Identifier: Apache-2.0
// Guesses for all sequences of a pass together, as one pass of a draft model makes them.
#pragma once

#include <cstdint>
#include <span>

#include "engine/speculation/draft_lengths.h"
#include "engine/speculation/draft_source.h"

namespace stoch {

// A sequence of the next pass, which may check guesses.
struct DraftTurn {
  DraftSource* source = nullptr;  // null: nobody guesses for it
  std::span<const int32_t> ids;   // every token so far
  int64_t most = 0;               // guesses that it may check
  int64_t generated = 0;          // of ids
  int64_t left = 0;               // that it may still generate
};

// A source that guesses next to others. Requires: all sources of an engine are of one class and have one maker.
class GroupDraftSource : public DraftSource {
 public:
  // Called before Propose of any of them with all sequences of the next pass, on the first that has a source.
  // max_rows: of that pass. times: of passes so far.
  virtual void Prepare(std::span<const DraftTurn> turns, int64_t max_rows, const PassTimes& times) = 0;
};

}  // namespace stoch
