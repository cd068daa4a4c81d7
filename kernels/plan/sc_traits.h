// SPDX-License-Identifier: Apache-2.0
// What the choice of a GPU kernel needs to know of an ScOperator.
#pragma once

#include <cstdint>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Plain numbers, so that a plan is a function of values. Tables that "are there" are those of kernels/cuda/sc/format/tables.h.
struct ScTraits {
  ScCode code = ScCode::kSignMagnitude;
  int64_t chunk_d = 0;     // of the configuration, 0: one chunk
  int64_t scope_rows = 1;  // rows of activations that share a scale; 0: all of a pass
  int stoc_len = 128;
  int masks = 64;
  int levels = 128;
  int max_count = 128;
  bool has_streams = false;       // counts as popcounts of streams
  bool has_bytes = false;         // counts fit a byte, but for a largest one of 256
  bool has_quarters = false;      // in a quarter of side b's levels, from one to the next a count stays or rises by one
  bool has_residuals = false;     // ScResiduals
  bool direct_ranks = false;      // RanksAreDirect
  bool has_tile_form = false;     // HasTileForm
  bool has_int8_form = false;     // HasInt8Form
  bool has_common_ranks = false;  // ranks of side b's levels are the same under every mask
};

// The traits of `op`. The first call for a configuration takes some 4 ms, as it looks for ScResiduals and ScInt8Entry;
// the last 64 configurations are kept. Thread-safe.
ScTraits MakeScTraits(const ScOperator& op);

// Whether every count fits a byte, but for one possible exception: 256 where both levels are the largest.
bool CountsFitBytes(const ScOperator& op);
// Whether rows of counts of up to 128 levels are staircases whose steps are 0 or 1.
bool CountsAreStaircases(const ScOperator& op);
// Whether a formula (DirectRanks of kernels/cuda/sc/tensor_core/operand.cuh) gives the ranks of side b's levels and, of
// 128 cycles, the ones of side a's streams. Takes 20 us.
bool RanksAreDirect(const ScOperator& op);
// Whether every mask has the same ranks. Requires: has_streams.
bool RanksAreCommon(const ScOperator& op);

}  // namespace stoch
