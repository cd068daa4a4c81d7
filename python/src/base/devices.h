// SPDX-License-Identifier: Apache-2.0
// The devices that this process multiplies on: each is opened once, at its first use, and stays open.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/backend.h"

namespace stoch::python {

// A backend of one device, and the lock on which its callers queue.
struct OpenDevice {
  std::unique_ptr<Backend> backend;
  Device device;
  std::mutex mutex;
};

// Requires: the caller does not hold the GIL: opening takes a while.
// Errors:   InvalidInput for a device that is not there, UsedBeforeFork.
OpenDevice& DeviceOf(Device device);

// Every device opened so far.
std::vector<OpenDevice*> OpenDevices();

// Whether this process is a child of one that had used the engine: its threads and its driver are not here, and
// nothing made by the parent may be used or freed.
bool WasForked();
// Errors: UsedBeforeFork.
void RequireNotForked();
// From now on a fork is noticed.
void WatchForFork();

// Errors: NotFinite, in the words of Backend::CheckFinite.
void CheckFinite(OpenDevice& open);

}  // namespace stoch::python
