// SPDX-License-Identifier: Apache-2.0
// Linears of the fp16 baseline: weights and activations in fp16, sums in fp32. Their bits may differ between GPUs and
// libraries.
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

// Computes y = half(f(x)) @ w^T by cuBLAS for all `tasks`, whose weights share the activations f(x); f is the prologue
// of `source`. Shapes: x [rows, cols].
void LaunchHalfLinear(DeviceContext& ctx, const RowSource& source, int64_t rows, int64_t cols,
                      const SiteReporter& reporter, std::span<const HalfTask> tasks);

}  // namespace stoch::cuda
