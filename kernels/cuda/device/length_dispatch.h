// SPDX-License-Identifier: Apache-2.0
// From the vectors of a call to their metrics, and from those to the slots of its rows, for linears and attention.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// Vectors that lengths are chosen by: `per_row` of `dims` numbers next to each other in each row.
struct MetricVectors {
  const float* x = nullptr;
  int64_t rows = 0;
  int64_t row_stride = 0;
  int64_t per_row = 1;
  int64_t dims = 0;
  const int32_t* channels = nullptr;  // the dims of a vector that count, by their place in it; null: all in order
};
// metrics: [rows][per_row]. Bits: docs/research.md#mixed-lengths.
void LaunchMetrics(cudaStream_t stream, const LengthView& view, const MetricVectors& vectors, float* metrics);

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
