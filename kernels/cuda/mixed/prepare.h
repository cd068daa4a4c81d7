// SPDX-License-Identifier: Apache-2.0
// Prepares the input of a linear for the fast kernels of mixed stream lengths: codes, scales and slots, in one kernel.
// A slot is the index of a stream length in LengthView::tables.
#pragma once

#include <cstdint>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// For one of the weights that share f(x): the rule that picks stream lengths, and where the slots of the rows go.
struct PrepareTask {
  LengthView view;
  uint8_t* slots = nullptr;  // slots to write, [tokens][per_row]; null: the weight has no rule
  int32_t per_row = 1;       // slots per row: 1, or the number of chunks
};

// Quantizes f(x) as side a of a bipolar sign-magnitude operator, one scale per (row, chunk), and writes the slot of
// every row or (row, chunk) for each of `count` tasks. The returned view points into `scratch`.
// Requires: rules whose slots depend on their row alone (LengthView::alone), chunks of at most 128 dimensions,
//           in_features floats fit in shared memory (kMixedPrepareStaticBytes).
// Bits: docs/sc_arithmetic.md#2-quantizers, docs/research.md#mixed-lengths; a scope with a NaN or an infinity becomes
//       zeros and is reported.
ScActivationView LaunchPrepareRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                   const ScDims& dims, int q_max, const PrepareTask* tasks, int count,
                                   const SiteReporter& reporter);

}  // namespace stoch::cuda
