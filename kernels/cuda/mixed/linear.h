// SPDX-License-Identifier: Apache-2.0
// Linears with mixed stream lengths, protected channels, smoothing, integers and multiplier tables.
//
// Bits: docs/research.md, as on the CPU, whichever way a call runs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/mixed/rows.h"
#include "kernels/cuda/mixed/task.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/linear/route.h"

namespace stoch::cuda {

// out = or += f @ w^T by kMixedGeneric or kMixedSorted.
void LaunchMixedRows(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedTask& task,
                     LinearRoute route, const SiteReporter& reporter);

// out = or += f @ w^T, one product at a time, rows of the rest at `slots` where it has a rule. Shows nothing.
void LaunchMixedProduct(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedWeight& weight,
                        const ScExtras* extras, const RowSlots* slots, const SiteReporter& reporter,
                        const LinearOutput& out);

// The experts that slots of a row chose, which share the operators, the lengths and the dimensions of `first`.
struct MixedExperts {
  const MixedWeight* first = nullptr;
  const ScExtras* extras = nullptr;     // of expert 0; null: none
  const ScWeightView* views = nullptr;  // of their rest, in device memory
  const int32_t* chosen = nullptr;      // [slots]
  int64_t row_slots = 1;                // slots that share a row of the input
};
// out[slot] = f @ w[chosen[slot]]^T. Requires: no protected channels, no smoothing, lengths that depend on their row alone.
void LaunchMixedExperts(DeviceContext& ctx, const MixedRows& input, const MixedExperts& experts,
                        const SiteReporter& reporter, const LinearOutput& out);

// Backend::ScMixedMatmul.
void LaunchScMixedMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                         const ScExtras& extras, std::span<const int> lengths, const TensorView& out);

}  // namespace stoch::cuda
