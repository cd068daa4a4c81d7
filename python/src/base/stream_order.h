// SPDX-License-Identifier: Apache-2.0
// Orders ops with the stream of a caller.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/caller_streams.h"
#include "python/src/base/devices.h"
#include "python/src/base/errors.h"

namespace stoch::python {

// Ops issued in a scope of this run after what the caller's stream holds, and before what it gets after End(), where the
// backend has streams.
// Requires: the lock of the device is held.
// Errors:   NotFinite for what earlier ops met.
class StreamOrder {
 public:
  StreamOrder(OpenDevice& open, uintptr_t stream)
      : streams_(dynamic_cast<CallerStreams*>(open.backend.get())), device_(open.device), stream_(stream) {
    if (streams_ == nullptr) return;
    // First: a stream that is captured into a graph is known as such from here on, and is not asked.
    streams_->RunAfter(device_, stream_);
    const std::string earlier = streams_->PollFinite(device_);
    if (earlier.empty()) return;
    End();
    throw NotFinite(earlier);
  }
  void End() {
    if (streams_ != nullptr) streams_->RunBefore(device_, stream_);
  }

 private:
  CallerStreams* streams_;
  Device device_;
  uintptr_t stream_;
};

}  // namespace stoch::python
