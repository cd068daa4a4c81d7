// SPDX-License-Identifier: Apache-2.0
// The facts about an ScOperator that the choice of a GPU kernel depends on.
#pragma once

#include <cstdint>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Plain numbers, so that a plan is a function of values. has_bytes, has_quarters and has_residuals say which tables of
// kernels/cuda/sc/format/tables.h exist for the operator.
struct ScTraits {
  ScCode code = ScCode::kSignMagnitude;
  int64_t chunk_d = 0;     // chunk_d of the configuration; 0: one chunk
  int64_t scope_rows = 1;  // rows of activations that share a scale; 0: all rows of a pass
  int stoc_len = 128;
  int masks = 64;
  int levels = 128;
  int max_count = 128;
  bool has_streams = false;       // counts are popcounts of streams
  bool has_bytes = false;         // counts fit a byte (CountsFitBytes)
  bool has_quarters = false;      // CountsAreStaircases
  bool has_residuals = false;     // ScResiduals
  bool direct_ranks = false;      // RanksAreDirect
  bool has_tile_form = false;     // HasTileForm
  bool has_int8_form = false;     // HasInt8Form
  bool has_common_ranks = false;  // ranks of side b's levels are the same under every mask
};

// The traits of `op`. The first call for a configuration takes some 4 ms, as it looks for ScResiduals and ScInt8Entry;
// the last 64 configurations are kept. Thread-safe.
ScTraits MakeScTraits(const ScOperator& op);

// Whether every count fits a byte; the count of the two largest levels may also be 256.
bool CountsFitBytes(const ScOperator& op);
// Whether there are at most 128 levels, and in every row of counts a count stays or rises by one from each level of
// side b to the next, within each quarter of 32 levels.
bool CountsAreStaircases(const ScOperator& op);
// Whether a formula (DirectRanks of kernels/cuda/sc/tensor_core/operand.cuh) gives the ranks of side b's levels and,
// for 128 cycles, the number of ones of side a's streams. Takes 20 us.
bool RanksAreDirect(const ScOperator& op);
// Whether every mask has the same ranks. Requires: has_streams.
bool RanksAreCommon(const ScOperator& op);

}  // namespace stoch
