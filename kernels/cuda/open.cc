// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/open.h"

#include <cuda_runtime.h>

#include <filesystem>

#include "kernels/cuda/backend_impl.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/ordinal.h"

namespace stoch::cuda {
namespace {

constexpr int kMinComputeCapability = 80;

bool IsUsable(int ordinal) {
  int major = 0;
  int minor = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess &&
         major * 10 + minor >= kMinComputeCapability;
}

}  // namespace

Probe ProbeDevices() {
  Probe probe;
  std::error_code ignored;
  probe.hardware_seen = std::filesystem::exists("/dev/nvidiactl", ignored);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    probe.problem = code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice || code == cudaErrorStubLibrary
                        ? "no usable NVIDIA driver was found"
                        : std::string("CUDA does not start: ") + cudaGetErrorString(code);
    return probe;
  }
  probe.hardware_seen = probe.hardware_seen || count > 0;
  // Ordinals are how the caller names devices, so usable GPUs must be consecutive from 0: an old GPU ends the list.
  while (probe.devices < count && IsUsable(probe.devices)) ++probe.devices;
  (void)cudaGetLastError();
  probe.devices = DeviceNumbers(probe.devices);
  if (probe.devices == 0) probe.problem = "cuda:0 is older than compute capability 8.0";
  return probe;
}

std::unique_ptr<Backend> OpenBackend(std::span<const int> ordinals) {
  const Probe probe = ProbeDevices();
  for (const int ordinal : ordinals) {
    if (ordinal >= 0 && ordinal < probe.devices) continue;
    throw InvalidInput(
        "device cuda:" + std::to_string(ordinal) + " is not there: " +
        (probe.devices == 0 ? probe.problem : "this machine has cuda:0 to cuda:" + std::to_string(probe.devices - 1)));
  }
  return std::make_unique<CudaBackend>(ordinals);
}

}  // namespace stoch::cuda
