// SPDX-License-Identifier: Apache-2.0
// Prepares rows of activations for products with extras: metrics, quantization of a part's channels, copies sorted by
// stream length.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/weights/mixed.h"

namespace stoch::cuda {

// Rows f(x) in device memory, F32 [rows][stride], of which `cols` columns are used.
struct MixedRows {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  // [rows / row_slots] in device memory: the row number by which faults are drawn (HardwareSite); null: none.
  const uint64_t* fault_rows = nullptr;
  int64_t row_slots = 1;  // rows that share one entry of fault_rows
};

// Scratch for the quantized activations of one part of a weight.
struct MixedScratch {
  // Codes [rows][padded], scales [chunks][rows], zero points [rows], row sums of codes [rows].
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  float* zeros = nullptr;
  int32_t* sums = nullptr;
  void* extremes = nullptr;  // Extremes [chunks][rows] if rows share scales
};
MixedScratch TakeMixedScratch(Scratch& scratch, const MixedPart& part, int64_t rows);

// Writes the metrics by which the part's rule picks stream lengths: [rows], or [rows][chunks] for
// ScLengthScope::kChunk.
void LaunchRowMetrics(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, float* metrics);

// Quantizes the part's channels of f(x), divided by their smoothing factors, as side a. smooth: [cols], null: none.
ScActivationView LaunchQuantizePart(DeviceContext& ctx, const MixedRows& input, const MixedPart& part,
                                    const float* smooth, const MixedScratch& scratch, const SiteReporter& reporter);

// to[i * stride + j] = channel j of the part in row order[i] of f(x), divided by its smoothing factor.
void LaunchGatherRows(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, const float* smooth,
                      const int32_t* order, float* to, int64_t stride);
// out[order[i]] = from[i], or += from[i], for rows [cols] i < rows.
void LaunchScatterRows(DeviceContext& ctx, const float* from, const int32_t* order, int64_t rows, int64_t cols,
                       const LinearOutput& out);

}  // namespace stoch::cuda
