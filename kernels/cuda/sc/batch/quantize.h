// SPDX-License-Identifier: Apache-2.0
// Quantizes the activations of small batches for SC linears in a kernel of its own. Kernels that quantize inside use
// the device code of quantize.cuh.
#pragma once

#include "kernels/cuda/prologue/activations.h"

namespace stoch::cuda {

// Whether LaunchBatchQuantize takes the operator and dimensions: sign-magnitude codes, scales that rows do not share,
// and chunks of at most 128 dimensions.
bool BatchQuantizes(const ScOperator& op, const ScDims& dims);
// Quantizes f(x) of `tokens` rows to codes and scales in `scratch`, equal to those of LaunchQuantize. A warp quantizes
// one chunk, so that only the latency of a chunk, not of a whole row, delays the linear.
// Requires: BatchQuantizes(op, MakeScDims(in_features, op.config.chunk_d)).
ScActivationView LaunchBatchQuantize(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                     int64_t in_features, const ScOperator& op, const SiteReporter& reporter);

}  // namespace stoch::cuda
