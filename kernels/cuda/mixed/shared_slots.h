// SPDX-License-Identifier: Apache-2.0
// Groups the tasks of a call that one launch can take: those for which every row, or (row, chunk), has the same slot
// (index of a stream length).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cuda/mixed/task.h"

namespace stoch::cuda {

// Whether two tasks have equal length rules and, for each slot, the same operator.
bool SharesSlots(const MixedTask& a, const MixedTask& b);

// A group of tasks that share slots.
struct SlotGroup {
  size_t first = 0;                        // index in the call's tasks of the group's first task
  std::span<const ScLinearTask> products;  // the group's products, in the order of the call
  std::span<const int64_t> out_features;   // output features of each product
};

// Calls `launch` for each group of `tasks`, in the order of the groups' first tasks.
// Requires: 1..kMaxScTasks tasks.
void ForSharedSlots(std::span<const MixedTask> tasks, const std::function<void(const SlotGroup&)>& launch);

}  // namespace stoch::cuda
