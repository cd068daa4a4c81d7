// SPDX-License-Identifier: Apache-2.0
// Quantizing the activations of small batches for SC linears, before a kernel or inside it (quantize.cuh).
#pragma once

#include "kernels/cuda/prologue/activations.h"

namespace stoch::cuda {

// LaunchQuantize for few rows whose scopes are single rows: a warp a chunk, so that the latency of one chunk, not that
// of a row, stands before every linear.
// Requires: BatchQuantizes(op, dims).
bool BatchQuantizes(const ScOperator& op, const ScDims& dims);
ScActivationView LaunchBatchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                     int64_t in_features, const ScOperator& op, const SiteReporter& reporter);

}  // namespace stoch::cuda
