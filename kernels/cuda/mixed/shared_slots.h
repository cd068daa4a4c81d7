// SPDX-License-Identifier: Apache-2.0
// Tasks of a call that one launch can take: those for which every row, or (row, chunk), has the same slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cuda/mixed/task.h"

namespace stoch::cuda {

// Whether rows have the same slots, and slots the same operators, for both.
bool SharesSlots(const MixedTask& a, const MixedTask& b);

// Tasks that share slots.
struct SlotGroup {
  size_t first = 0;                        // the first of them, an index into the call's tasks
  std::span<const ScLinearTask> products;  // theirs, in the order of the call
  std::span<const int64_t> out_features;   // of each
};

// Calls `launch` for each group of `tasks`, in the order of their first ones.
// Requires: 1 to kMaxScTasks tasks.
void ForSharedSlots(std::span<const MixedTask> tasks, const std::function<void(const SlotGroup&)>& launch);

}  // namespace stoch::cuda
