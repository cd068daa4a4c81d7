// SPDX-License-Identifier: Apache-2.0
// Ordering of a device's ops with a stream of the caller (kernels/caller_streams.h), by events.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Requires: the device of `context` is current, in every call. Must not outlive the context.
class CallerOrder {
 public:
  explicit CallerOrder(DeviceContext& context);
  ~CallerOrder();
  CallerOrder(const CallerOrder&) = delete;
  CallerOrder& operator=(const CallerOrder&) = delete;

  void RunAfter(cudaStream_t stream);
  void RunBefore(cudaStream_t stream);
  // See CallerStreams::PollFinite. While a stream is captured nothing has ended, so there is nothing to say.
  std::string PollFinite();

 private:
  bool IsCaptured() const;

  DeviceContext& context_;
  cudaEvent_t entered_ = nullptr;  // the caller's work so far
  cudaEvent_t left_ = nullptr;     // ours so far
  cudaEvent_t seen_ = nullptr;     // the copy of the flag below
  bool copied_ = false;            // since the last answer
  Buffer flag_;                    // pinned
};

}  // namespace stoch::cuda
