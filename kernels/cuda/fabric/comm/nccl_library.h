// SPDX-License-Identifier: Apache-2.0
// NCCL as this process finds it: loaded when several GPUs first need it, so that a build with it runs without it.
//
// The only file that knows NCCL's headers and its library's name. NVLink multicast (NVLS) stays off.
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

// An NCCL call that failed: code, call and advice are in the message.
class NcclError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// The NCCL of this machine: its version as 22809 for 2.28.9, or 0 and why as one clause.
struct NcclProbe {
  int version = 0;
  std::string problem;
};
const NcclProbe& ProbeNccl();
std::string NcclVersionText(int version);  // "2.28.9"

// One communicator a device, all of this process. Destroyed with it. For one stream of each device: NCCL makes streams
// that share a communicator wait for each other.
class NcclGroup {
 public:
  // Errors: NcclError, also where NCCL is not there.
  explicit NcclGroup(std::span<const int> ordinals);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // receive[i] on device i = send[0], send[1], ... of `count` floats each, on streams[i].
  // Async:  on the streams; may be recorded into graphs.
  void AllGather(std::span<const float* const> send, std::span<float* const> receive, size_t count,
                 std::span<const cudaStream_t> streams);
  // Errors: NcclError where a communicator failed since.
  void Check() const;

 private:
  struct Comms;
  std::unique_ptr<Comms> comms_;
};

}  // namespace stoch::cuda
