// SPDX-License-Identifier: Apache-2.0
// From the input of a linear to what fast kernels of mixed lengths take: codes, scales and slots, in one kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// The rules of the weights that share f(x), and where the slots of their rows go.
struct PrepareTask {
  LengthView view;
  uint8_t* slots = nullptr;  // [tokens][per_row]; null: the weight has no rule
  int32_t per_row = 1;       // 1 or the number of chunks
};

// Quantizes f(x) as side a of a bipolar operator of signs and magnitudes, a scale for each (row, chunk), and picks the
// slot of every row or (row, chunk) of each of `count` tasks. The view points into `scratch`.
// Requires: rules whose slots depend on their row alone (LengthView::alone), chunks of at most 128 dimensions,
//           in_features floats fit shared memory (kMixedPrepareStaticBytes).
// Bits:     docs/sc_arithmetic.md#2-quantizers, docs/research.md#mixed-lengths; a scope with NaN or infinity becomes
//           zeros and is reported.
ScActivationView LaunchPrepareRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                   const ScDims& dims, int q_max, const PrepareTask* tasks, int count,
                                   const SiteReporter& reporter);

}  // namespace stoch::cuda
