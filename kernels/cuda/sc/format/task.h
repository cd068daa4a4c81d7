// SPDX-License-Identifier: Apache-2.0
// A task of an SC linear: a weight and where its product goes, as callers and as kernels see it.
#pragma once

#include "kernels/cuda/sc/format/layout.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// One weight of a call and where its product goes.
struct ScLinearTask {
  ScWeightView weight;
  LinearOutput out;
};

// A task as the table, small-batch and prefill kernels read it. (Decode has an order of its own: decode/args.cuh.)
struct ScKernelTask {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;  // of the weight: output features
  int rows_padded = 0;
  int first_block = 0;  // of its blocks of rows, as the kernel cuts them, among those of all tasks
  bool add = false;     // to what is in the outputs
};

inline ScKernelTask MakeKernelTask(const ScLinearTask& task, int first_block) {
  return {task.weight.codes,
          task.weight.scales,
          task.out.data,
          task.out.stride,
          static_cast<int>(task.weight.rows),
          static_cast<int>(task.weight.rows_padded),
          first_block,
          task.out.add};
}

}  // namespace stoch::cuda
