// SPDX-License-Identifier: Apache-2.0
// The weights of mixed stream lengths in one call, and the preparation of their rows: quantization, and a slot (index
// of a stream length) for every row or (row, chunk).
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

// One weight of a call and where its product goes.
struct MixedTask {
  const MixedWeight* weight = nullptr;
  const LinearSpec* spec = nullptr;
  LinearOutput out;
  // Facts about the weight by which plans choose a route.
  MixedTraits traits;
};
MixedTask MakeMixedTask(DeviceContext& ctx, const MixedWeight& weight, const LinearSpec& spec, const LinearOutput& out);

// Whether two tasks can share the quantized rows of a launch: equal quantizers and chunks.
bool SharesRows(const MixedTask& a, const MixedTask& b);

// Takes scratch for the slots of `rows` rows of each task; PrepareRows fills the slots. Requires: 1..kMaxScTasks tasks.
std::array<ScTaskLengths, kMaxScTasks> TakeSlots(Scratch& scratch, int64_t rows, std::span<const MixedTask> tasks);
// Quantizes f(x) of `rows` rows and writes their slots. lengths: as TakeSlots returned, its slots advanced to the first
// of the rows.
ScActivationView PrepareRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t rows,
                             std::span<const MixedTask> tasks, const std::array<ScTaskLengths, kMaxScTasks>& lengths,
                             const SiteReporter& reporter);

// Tells the observer of `ctx`, if there is one, the stream lengths of the rows. Waits for the device.
void ShowLengths(DeviceContext& ctx, const OpSite& site, std::span<const MixedTask> tasks,
                 const std::array<ScTaskLengths, kMaxScTasks>& lengths, int64_t rows);

}  // namespace stoch::cuda
