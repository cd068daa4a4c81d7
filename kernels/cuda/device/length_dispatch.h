// SPDX-License-Identifier: Apache-2.0
// From the metrics of a call to the slots of its rows, for linears and attention.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// The rows of one call: metrics[(first + i * step) * metrics_per_row + c], i < rows.
struct DispatchRange {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t step = 1;
};

// The slots of a call from its metrics: slots [..][slots_per_row], rows as in `range`. metrics_per_row is 1, or the
// number of chunks for ScLengthScope::kChunk. `extremes`: two floats of scratch.
void LaunchDispatch(cudaStream_t stream, const LengthView& view, const float* metrics, int64_t metrics_per_row,
                    int64_t slots_per_row, const DispatchRange& range, float* extremes, uint8_t* slots);

}  // namespace stoch::cuda
