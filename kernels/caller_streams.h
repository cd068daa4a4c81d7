// SPDX-License-Identifier: Apache-2.0
// Ordering of a backend's ops with a stream of whoever calls it. A backend whose devices have such streams derives from
// this too; one whose ops are done when they return does not.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/device.h"

namespace stoch {

// Threads: as Backend.
// Async:   the host never waits.
class CallerStreams {
 public:
  virtual ~CallerStreams() = default;
  // Ops issued from now on run after what `stream` (a cudaStream_t; 0 and 1 the legacy default stream, 2 the
  // thread's own) holds now. A stream that is captured into a graph captures them.
  virtual void RunAfter(Device device, uintptr_t stream) = 0;
  // Work issued on `stream` from now on runs after every op issued so far.
  virtual void RunBefore(Device device, uintptr_t stream) = 0;
  // NaN or infinity that ops met which are known to have ended, as CheckFinite words it, once; "" for nothing.
  virtual std::string PollFinite(Device device) = 0;
};

}  // namespace stoch
