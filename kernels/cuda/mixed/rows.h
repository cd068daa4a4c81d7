// SPDX-License-Identifier: Apache-2.0
// Rows of products with extras: their metrics, quantized parts, and copies in order of their lengths.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/weights/mixed.h"

namespace stoch::cuda {

// f(x): F32 rows in device memory.
struct MixedRows {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  const uint64_t* fault_rows = nullptr;  // as of a HardwareSite
  int64_t row_slots = 1;                 // rows that share one
};

// Scratch of a part, besides its rows.
struct MixedScratch {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;
  void* extremes = nullptr;  // where rows share scales
};
MixedScratch TakeMixedScratch(Scratch& scratch, const MixedPart& part, int64_t rows);

// Metrics of the dispatch channels: [rows], or for ScLengthScope::kChunk [rows][chunks].
void LaunchRowMetrics(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, float* metrics);

// The part's channels of f(x), divided by their smoothing and quantized as side a.
ScActivationView LaunchQuantizePart(DeviceContext& ctx, const MixedRows& input, const MixedPart& part,
                                    const float* smooth, const MixedScratch& scratch, const SiteReporter& reporter);

// to[i * stride + j] = channel j of the part of row order[i], divided by its smoothing.
void LaunchGatherRows(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, const float* smooth,
                      const int32_t* order, float* to, int64_t stride);
// Row order[i] of out = or += from[i].
void LaunchScatterRows(DeviceContext& ctx, const float* from, const int32_t* order, int64_t rows, int64_t cols,
                       const LinearOutput& out);

}  // namespace stoch::cuda
