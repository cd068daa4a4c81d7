// SPDX-License-Identifier: Apache-2.0
// Makes a device current for a C++ scope and restores the previous device at its end. The only caller of cudaSetDevice.
#pragma once

#include "kernels/base/device.h"

namespace stoch::cuda {

// Requires: device.kind is kCuda. Errors: DeviceError if the device cannot be made current.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace stoch::cuda
