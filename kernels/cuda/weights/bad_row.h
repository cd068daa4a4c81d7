// SPDX-License-Identifier: Apache-2.0
// Finds the first row of a weight that contains a NaN or an infinity.
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

// The first bad row of one weight, as the pack kernels report it in device memory.
class BadRow {
 public:
  explicit BadRow(DeviceContext& ctx) : ctx_(ctx), memory_(AllocateDevice(ctx.device, sizeof(int64_t))) {
    STOCH_CUDA(cudaMemcpyAsync(memory_.data(), &kNone, sizeof(int64_t), cudaMemcpyHostToDevice, ctx.stream));
  }
  // The word that pack kernels lower with atomicMin to the number of a bad row; one int64 in device memory.
  int64_t* device() const { return static_cast<int64_t*>(memory_.data()); }

  // The first bad row; -1: none. Waits for the device.
  int64_t Find() const {
    int64_t row = kNone;
    STOCH_CUDA(cudaMemcpyAsync(&row, memory_.data(), sizeof(row), cudaMemcpyDeviceToHost, ctx_.stream));
    STOCH_CUDA(cudaStreamSynchronize(ctx_.stream));
    return row == kNone ? -1 : row;
  }
  // Waits for the device. Errors: InvalidInput naming tensor, row and column, if there is a bad row.
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
