// What every SC linear kernel is launched with: one weight and where its product goes.
#pragma once

#include "kernels/cuda/sc/format/layout.h"
#include "kernels/plan/sc_linear_plan.h"

namespace stoch::cuda {

// One weight of a call and where its product goes.
struct ScLinearTask {
  ScWeightView weight;
  LinearOutput out;
};

// At most so many tasks share one launch of the table and small-batch kernels.
inline constexpr int kMaxBatchTasks = kMaxScTasks;

}  // namespace stoch::cuda
