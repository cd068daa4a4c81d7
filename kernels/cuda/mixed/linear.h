// SPDX-License-Identifier: Apache-2.0
// Linears with mixed stream lengths, protected channels, smoothing, integers and multiplier tables.
//
// Bits: docs/research.md, as on the CPU, whichever way a call runs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/mixed/product.h"
#include "kernels/cuda/mixed/task.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/linear/route.h"

namespace stoch::cuda {

// out = or += f @ w^T by kMixedGeneric or kMixedSorted.
void LaunchMixedRows(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedTask& task,
                     LinearRoute route, const SiteReporter& reporter);

// Backend::ScMixedMatmul.
void LaunchScMixedMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                         const ScExtras& extras, std::span<const int> lengths, const TensorView& out);

}  // namespace stoch::cuda
