// SPDX-License-Identifier: Apache-2.0
// The fp16 baseline: half weights and activations, fp32 sums. Outside the bit-identity promise.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {

struct HalfTask {
  HalfWeightView weight;
  LinearOutput out;
};

// y = half(f(x)) @ w^T by cuBLAS for weights that share f(x). Shapes: x [rows, cols].
void LaunchHalfLinear(DeviceContext& ctx, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, std::span<const HalfTask> tasks);

}  // namespace stoch::cuda
