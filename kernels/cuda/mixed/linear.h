// SPDX-License-Identifier: Apache-2.0
// SC linears with extras: stream lengths per row or (row, chunk), protected channels, smoothing, integer arithmetic,
// multiplier tables.
//
// Bits: identical to the CPU backend on every route; defined in docs/research.md.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/mixed/rows.h"
#include "kernels/cuda/mixed/task.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/linear/route.h"

namespace stoch::cuda {

// out = f @ w^T or out += f @ w^T, where `input` holds the rows f. route: kMixedGeneric, or kMixedSorted, for which the
// host waits for the device.
void LaunchMixedRows(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedTask& task,
                     LinearRoute route, const SiteReporter& reporter);

// out = f @ w^T or out += f @ w^T with the generic kernel, where `input` holds the rows f. slots: the stream length of
// each row for the part `rest` of the weight; null: picked by the weight's length rule, if it has one. The observer is
// not told.
void LaunchMixedProduct(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedWeight& weight,
                        const ScExtras* extras, const RowSlots* slots, const SiteReporter& reporter,
                        const PlainOutput& out);

// A linear of a mixture of experts with mixed weights. All experts have the operators, the length rule and the
// dimensions of `first`.
struct MixedExperts {
  // The weight of expert 0.
  const MixedWeight* first = nullptr;
  const ScExtras* extras = nullptr;     // extras of expert 0; null: none
  const ScWeightView* views = nullptr;  // [experts], in device memory: codes of each expert's part `rest`
  const int32_t* chosen = nullptr;      // [slots]: expert of each slot; a slot is one (row, choice) pair
  int64_t row_slots = 1;                // slots that share a row of the input
};
// out[slot] = f[slot / row_slots] @ w[chosen[slot]]^T, where `input` holds the rows f. Requires: no protected channels,
// no smoothing, and a rule that picks each row's stream length from that row alone.
void LaunchMixedExperts(DeviceContext& ctx, const MixedRows& input, const MixedExperts& experts,
                        const SiteReporter& reporter, const LinearOutput& out);

// Implements Backend::ScMixedMatmul. Waits for the device.
void LaunchScMixedMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                         const ScExtras& extras, std::span<const int> lengths, const TensorView& out);

}  // namespace stoch::cuda
