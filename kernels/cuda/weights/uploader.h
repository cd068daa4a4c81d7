// SPDX-License-Identifier: Apache-2.0
// Brings the numbers of weight sources to the device slab by slab: copied through pinned memory or generated there.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Rows [first_row, first_row + rows) of a stack of parts, row-major, in device memory.
struct WeightSlab {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

// Two slabs are in flight: while kernels read one, the host fills the other's pinned buffer and the copy engine moves
// it.
class Uploader {
 public:
  explicit Uploader(DeviceContext& ctx) : ctx_(ctx) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Calls consume(slab) for slabs in row order; consume launches kernels on ctx.stream that read the slab.
  // Requires: parts share cols, have type F32, F16 or BF16, and start at multiples of `granule` rows of the stack, as
  //           slabs then do. WeightSource::host may be memory of this device, written before the ops to come.
  void ForEachSlab(std::span<const WeightSource> parts, int64_t granule,
                   const std::function<void(const WeightSlab&)>& consume);
  // Frees the slabs' memory, once nothing reads them any more.
  void Release();

 private:
  struct Stage {
    Buffer pinned;
    Buffer device;
    cudaEvent_t copied = nullptr;    // the pinned buffer may be filled again
    cudaEvent_t consumed = nullptr;  // the device buffer may be written again
    bool used = false;
  };
  Stage& NextStage(size_t bytes);
  void Fill(Stage& stage, const WeightSource& part, int64_t first, int64_t count);

  DeviceContext& ctx_;
  std::array<Stage, 2> stages_;
  int next_ = 0;
};

}  // namespace stoch::cuda
