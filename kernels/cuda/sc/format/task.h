// SPDX-License-Identifier: Apache-2.0
// A task of an SC linear, as callers and as kernels see it: a weight and the destination of its product.
#pragma once

#include "kernels/cuda/sc/format/layout.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

// One weight of a call and the destination of its product.
struct ScLinearTask {
  ScWeightView weight;
  LinearOutput out;
};

// A task as the table, small-batch, tile and prefill kernels read it; the decode kernel has decode::Task
// (decode/args.cuh).
struct ScKernelTask {
  const uint8_t* codes = nullptr;  // codes of the weight, as ScWeightView::codes
  const float* scales = nullptr;   // [chunks][rows_padded] scales of the weight rows
  float* out = nullptr;            // output feature m of token n is out[n * out_stride + m]
  int64_t out_stride = 0;          // floats from one token of `out` to the next
  int rows = 0;                    // output features of the weight
  int rows_padded = 0;             // output features, padded to a multiple of kRowPadding
  // Index of the task's first block of weight rows, counted over all tasks of the call, padding included. A block is a
  // group of 16 rows; in the prefill kernels it is a super tile of kSuperRows rows.
  int first_block = 0;
  bool add = false;  // true: out = out + y; false: out = y
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
