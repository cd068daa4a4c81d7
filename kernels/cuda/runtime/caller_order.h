// SPDX-License-Identifier: Apache-2.0
// Orders a device's ops with a stream of the caller (kernels/caller_streams.h), by CUDA events.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Implements CallerStreams for one device. Requires: in every call the device of `context` is current. Must not outlive
// `context`.
class CallerOrder {
 public:
  explicit CallerOrder(DeviceContext& context);
  ~CallerOrder();
  CallerOrder(const CallerOrder&) = delete;
  CallerOrder& operator=(const CallerOrder&) = delete;

  // CallerStreams::RunAfter and RunBefore for this device.
  void RunAfter(cudaStream_t stream);
  void RunBefore(cudaStream_t stream);
  // CallerStreams::PollFinite for this device. While its stream is in capture nothing has run, so the answer is "".
  std::string PollFinite();

 private:
  // Whether the context's stream is in capture.
  bool IsCaptured() const;

  DeviceContext& context_;
  cudaEvent_t entered_ = nullptr;  // recorded on the caller's stream by the last RunAfter
  cudaEvent_t left_ = nullptr;     // recorded on the device's stream by the last RunBefore
  cudaEvent_t seen_ = nullptr;     // recorded after the last copy to `flag_`
  bool copied_ = false;            // a copy to `flag_` was issued since PollFinite last answered
  Buffer flag_;                    // pinned int: copy of the device's NaN flag (SiteReporter::flag)
};

}  // namespace stoch::cuda
