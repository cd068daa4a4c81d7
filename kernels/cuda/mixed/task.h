// SPDX-License-Identifier: Apache-2.0
// Weights of mixed lengths of one call, and their rows: quantized, with a slot for every row or (row, chunk).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/mixed.h"
#include "kernels/plan/linear/mixed_traits.h"

namespace stoch::cuda {

// One weight of a call, and where its product goes.
struct MixedTask {
  const MixedWeight* weight = nullptr;
  const LinearSpec* spec = nullptr;
  LinearOutput out;
  MixedTraits traits;
};
MixedTask MakeMixedTask(DeviceContext& ctx, const MixedWeight& weight, const LinearSpec& spec, const LinearOutput& out);

// Whether two of them can share the quantized rows of a launch.
bool SharesRows(const MixedTask& a, const MixedTask& b);

struct PreparedRows {
  ScActivationView a;
  std::array<ScTaskLengths, kMaxScTasks> lengths;
};
// Slots of `rows` rows for each task, which PrepareRows fills. Requires: 1..kMaxScTasks tasks.
std::array<ScTaskLengths, kMaxScTasks> TakeSlots(Scratch& scratch, int64_t rows, std::span<const MixedTask> tasks);
// Quantizes f(x) of `rows` rows and fills their slots, of which `lengths` points to the first.
ScActivationView PrepareRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                             std::span<const MixedTask> tasks, const std::array<ScTaskLengths, kMaxScTasks>& lengths,
                             const SiteReporter& reporter);

// Shows the observer, if one is there, the lengths of the rows.
void ShowLengths(DeviceContext& ctx, const OpSite& site, std::span<const MixedTask> tasks,
                 const std::array<ScTaskLengths, kMaxScTasks>& lengths, int64_t rows);

}  // namespace stoch::cuda
