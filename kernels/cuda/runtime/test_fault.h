// SPDX-License-Identifier: Apache-2.0
// A device that fails on purpose, for tests of what happens then.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <thread>

#include "kernels/base/buffer.h"
#include "kernels/base/device.h"

namespace stoch::cuda {

// A kernel after every op of a device, eager or in a graph, that counts them on the device and fails at one of them. When
// it does, "test_fault SECONDS" (since 1970) goes to standard error, so that it can be said how long it took to notice.
class TestFault {
 public:
  // What STOCH_TEST_DEVICE_FAULT asks for; null where it is not set. It names a file, of which the first process to ask
  // takes the first line: "illegal N" (an illegal address), "assert N" or "hang N" at op number N from then on, or
  // "none". A file without lines: null.
  // Errors: DeviceError for another line.
  static std::unique_ptr<TestFault> FromEnvironment(Device device);

  void Launch(cudaStream_t stream);

  enum class Kind : int { kIllegalAddress, kAssert, kHang };

 private:
  TestFault(Device device, Kind kind, unsigned ops);

  const Kind kind_;
  Buffer left_;         // unsigned: ops to go
  Buffer failing_;      // unsigned, of the host: whether it is about to fail
  std::jthread watch_;  // of failing_
};

}  // namespace stoch::cuda
