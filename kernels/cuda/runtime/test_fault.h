// SPDX-License-Identifier: Apache-2.0
// A device that fails on purpose, for tests of what happens then.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <thread>

#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/calls.h"
#include "kernels/cuda/runtime/site_table.h"

namespace stoch::cuda {

// A kernel after every op of a device, eager or in a graph, that counts them on the device and fails at one of them. When
// it does, "test_fault SECONDS SITE" (since 1970; the op before it, as "layer 3 q_proj") goes to standard error, so that
// it can be said how long it took to notice, and whether the right op was named.
class TestFault {
 public:
  // The fault that STOCH_TEST_DEVICE_FAULT asks for; null where it is not set. It names a file, of which the first process to ask
  // takes the first line: "illegal N" (an illegal address), "assert N" or "hang N" at op number N from then on, or
  // "none". A file without lines: null.
  // Errors: DeviceError for another line.
  static std::unique_ptr<TestFault> FromEnvironment(Device device, std::shared_ptr<SiteTable> sites);

  // After the op of `site`.
  void Launch(cudaStream_t stream, const OpSite& site);

  enum class Kind : int { kIllegalAddress, kAssert, kHang };

 private:
  TestFault(Device device, std::shared_ptr<SiteTable> sites, Kind kind, unsigned ops);

  const std::shared_ptr<SiteTable> sites_;
  const Kind kind_;
  Buffer left_;         // unsigned: ops to go
  Buffer failing_;      // int, of the host: the site after which it is about to fail, or 0
  std::jthread watch_;  // of failing_
};

}  // namespace stoch::cuda
