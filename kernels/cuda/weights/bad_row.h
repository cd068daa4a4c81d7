// SPDX-License-Identifier: Apache-2.0
// The first row of a weight with NaN or infinity, as the pack kernels found it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/spec_check.h"

namespace stoch::cuda {

class BadRow {
 public:
  explicit BadRow(DeviceContext& ctx) : ctx_(ctx), memory_(AllocateDevice(ctx.device, sizeof(int64_t))) {
    STOCH_CUDA(cudaMemcpyAsync(memory_.data(), &kNone, sizeof(int64_t), cudaMemcpyHostToDevice, ctx.stream));
  }
  int64_t* device() const { return static_cast<int64_t*>(memory_.data()); }

  // Waits. -1: no row.
  int64_t Find() const {
    int64_t row = kNone;
    STOCH_CUDA(cudaMemcpyAsync(&row, memory_.data(), sizeof(row), cudaMemcpyDeviceToHost, ctx_.stream));
    STOCH_CUDA(cudaStreamSynchronize(ctx_.stream));
    return row == kNone ? -1 : row;
  }
  // Waits. Errors: InvalidInput naming tensor, row and column.
  void Check(std::span<const WeightSource> parts) const {
    const int64_t row = Find();
    if (row >= 0) RejectNonFinite(parts, row);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  DeviceContext& ctx_;
  Buffer memory_;
};

}  // namespace stoch::cuda
