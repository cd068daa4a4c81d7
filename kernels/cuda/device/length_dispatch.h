// SPDX-License-Identifier: Apache-2.0
// Computes the metric of each vector of a call, and from the metrics the slot of each row, for linears and attention. A
// slot is the index of a stream length in LengthView::tables.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// The vectors whose metrics choose stream lengths: each of `rows` rows holds per_row adjacent vectors of `dims`
// numbers.
struct MetricVectors {
  const float* x = nullptr;
  int64_t rows = 0;
  int64_t row_stride = 0;
  int64_t per_row = 1;
  int64_t dims = 0;
  // [dims]: offsets of a vector's numbers, in floats from its start; null: 0, 1, ..., dims - 1.
  const int32_t* channels = nullptr;
};
// Computes metrics [rows][per_row] (largest magnitude, norm or crest factor, LengthView::metric). Bits:
// docs/research.md#mixed-lengths.
void LaunchMetrics(cudaStream_t stream, const LengthView& view, const MetricVectors& vectors, float* metrics);

// The rows of one call: row i < rows of the call is row first + i * step of `metrics` and `slots`.
struct DispatchRange {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t step = 1;
};

// Writes the slot of every row of a call, by the rule of `view`, to slots [..][slots_per_row] at the rows of `range`.
// metrics: [..][metrics_per_row]; metrics_per_row is the number of chunks for ScLengthScope::kChunk, else 1.
// slots_per_row: 1, or the number of chunks. extremes: scratch of two floats in device memory.
void LaunchDispatch(cudaStream_t stream, const LengthView& view, const float* metrics, int64_t metrics_per_row,
                    int64_t slots_per_row, const DispatchRange& range, float* extremes, uint8_t* slots);

}  // namespace stoch::cuda
