// SPDX-License-Identifier: Apache-2.0
// Makes a device fail on purpose, for tests of error handling.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <thread>

#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/calls.h"
#include "kernels/cuda/runtime/site_table.h"

namespace stoch::cuda {

// Launches a kernel after every op of a device, eagerly or in a graph. The kernel counts ops on the device and fails at
// a given one. Then the line "test_fault SECONDS SITE" goes to standard error (seconds since 1970; SITE is the op after
// which the kernel failed, as "layer 3 q_proj"), so that a test can measure how long the failure took to be noticed,
// and whether the right op was named.
class TestFault {
 public:
  // The fault that the environment variable STOCH_TEST_DEVICE_FAULT asks for. The variable names a file, of which each
  // call removes the first line: "illegal N" (an illegal address), "assert N" or "hang N" at the N-th op from now on,
  // or "none". Returns null for "none", if the file has no line left, and if the variable is not set.
  // Errors: DeviceError for any other line.
  static std::unique_ptr<TestFault> FromEnvironment(Device device, std::shared_ptr<SiteTable> sites);

  // Launches the counting kernel on `stream`, after the op at `site`.
  void Launch(cudaStream_t stream, const OpSite& site);

  enum class Kind : int { kIllegalAddress, kAssert, kHang };

 private:
  TestFault(Device device, std::shared_ptr<SiteTable> sites, Kind kind, unsigned ops);

  const std::shared_ptr<SiteTable> sites_;
  const Kind kind_;
  Buffer left_;         // unsigned in device memory: ops until the failure
  Buffer failing_;      // int in pinned host memory: site of the op after which the kernel failed, 0 = not failed yet
  std::jthread watch_;  // thread that polls failing_ and prints the line
};

}  // namespace stoch::cuda
