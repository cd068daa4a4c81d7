// SPDX-License-Identifier: Apache-2.0
// The only caller of cudaSetDevice: makes a device current for a scope and puts the previous one back.
#pragma once

#include "kernels/base/device.h"

namespace stoch::cuda {

// Requires: device.kind is kCuda. Errors: DeviceError where the device cannot be made current.
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
