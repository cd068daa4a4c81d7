// SPDX-License-Identifier: Apache-2.0
// Cutting a pass into pieces that follow each other through the stages of a model, so that all stages work at once.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace stoch {

// Where a pass may be cut without changing a bit of its result.
struct CutRules {
  bool between_sequences = false;  // a row's result does not depend on other sequences of the pass
  bool within_sequences = false;   // nor on later rows of its own
};

// One piece: rows [first_row, first_row + layout.ids.size()) of the pass and its outputs from first_output on.
struct MicroBatch {
  PassLayout layout;  // page spans point where those of the pass do
  int64_t first_row = 0;
  int64_t first_output = 0;
};

// Up to `pieces` pieces in row order, as even as the rules allow. Requires: pieces >= 1.
std::vector<MicroBatch> CutPass(const PassLayout& pass, int64_t pieces, const CutRules& rules);

// How many pieces let `stages` stages overlap while each still has `min_rows` rows, below which a matrix product costs
// nearly as much as one of more; 1 where there is nothing to gain.
int64_t PiecesFor(int64_t rows, int64_t stages, int64_t min_rows);

// How many of its `stages` a pass is issued to while `ahead` passes that began before it are in flight, of `in_flight`
// in all: as many ahead of the next pass as each has, so that every device works on one of them and no pass waits
// after a later one. The first has all.
int64_t StagesIssued(int64_t stages, int64_t ahead, int64_t in_flight);

}  // namespace stoch
