// SPDX-License-Identifier: Apache-2.0
// The NCCL library, loaded when several GPUs first need it, so that a build with NCCL also runs without it.
//
// Only nccl_library.cc includes NCCL's header and names its library. NVLink multicast (NVLS) stays off.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace stoch::cuda {

// An NCCL call that failed. The message has the error code, the call, and advice.
class NcclError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// The NCCL of this machine: its version as a number, 22809 for 2.28.9; if NCCL cannot be used, 0 and the reason as a
// clause.
struct NcclProbe {
  int version = 0;
  std::string problem;
};
const NcclProbe& ProbeNccl();
// Formats a version number as text: "2.28.9" for 22809.
std::string NcclVersionText(int version);

// NCCL communicators, one per device, all in this process; the destructor destroys them. A communicator serves one
// stream of its device: NCCL makes streams that share a communicator wait for each other.
class NcclGroup {
 public:
  // Creates communicators for the devices with these CUDA ordinals. Errors: NcclError, also if NCCL cannot be used.
  explicit NcclGroup(std::span<const int> ordinals);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // All-gather: receive[i] on device i gets send[0], send[1], ... one after another, `count` floats each, on
  // streams[i].
  // Async: on the streams; may be recorded into graphs.
  void AllGather(std::span<const float* const> send, std::span<float* const> receive, size_t count,
                 std::span<const cudaStream_t> streams);
  // Errors: NcclError if a communicator has failed.
  void Check() const;

 private:
  struct Comms;
  std::unique_ptr<Comms> comms_;
};

}  // namespace stoch::cuda
