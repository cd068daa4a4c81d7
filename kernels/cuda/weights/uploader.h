// SPDX-License-Identifier: Apache-2.0
// Brings the numbers of weight sources to the device in slabs of rows. Numbers, or codes that the device decodes, are
// copied through pinned memory; random and constant weights are generated on the device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Rows [first_row, first_row + rows) of a stack of weight sources, row-major in device memory.
struct WeightSlab {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

// Uploads weights with a double buffer: while kernels read one slab, the host fills the pinned buffer of the other and
// the copy engine moves it to the device.
class Uploader {
 public:
  explicit Uploader(DeviceContext& ctx) : ctx_(ctx) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Calls consume(slab) for every slab in row order; consume launches kernels on ctx.stream that read the slab.
  // Requires: parts have equal cols, type F32, F16 or BF16, and begin at multiples of `granule` rows of the stack;
  //           slabs then do so, too. WeightSource::host may be memory of this device if its writes precede the ops on
  //           ctx.stream.
  void ForEachSlab(std::span<const WeightSource> parts, int64_t granule,
                   const std::function<void(const WeightSlab&)>& consume);
  // Waits for the device, then frees the memory of the slabs.
  void Release();

 private:
  // One half of the double buffer.
  struct Stage {
    Buffer pinned;
    Buffer device;
    cudaEvent_t copied = nullptr;    // recorded when the pinned buffer may be refilled
    cudaEvent_t consumed = nullptr;  // recorded when the device buffer may be overwritten
    bool used = false;
  };
  // The half of the double buffer that is used next, with room for `sent` bytes in pinned memory and for `bytes` on the
  // device. Waits until the pinned buffer may be refilled.
  Stage& NextStage(size_t sent, size_t bytes);
  // Brings elements [first, first + count) of a part to stage.device: fills the pinned buffer and enqueues the rest.
  void Fill(Stage& stage, const WeightSource& part, int64_t first, int64_t count);
  // Enqueues a copy of the first `bytes` bytes of stage.pinned to byte `offset` of stage.device, after the kernels that
  // read the previous slab there. Later work on ctx.stream waits for the copy.
  void Send(Stage& stage, int64_t bytes, int64_t offset);

  DeviceContext& ctx_;
  std::array<Stage, 2> stages_;
  int next_ = 0;
};

}  // namespace stoch::cuda
