// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/gpu_probe.h"

namespace stoch::cuda {
namespace {

// The compilation of ProbeKernel that the driver chose, as the kernel itself reports it. architecture: 90 for sm_90;
// wgmma: 1 if compiled for sm_90a.
struct Compiled {
  int architecture = 0;
  int wgmma = 0;
};

// Reports which compilation of the kernel runs. One thread.
__global__ void ProbeKernel(Compiled* to) {
#if defined(__CUDA_ARCH__)
  to->architecture = __CUDA_ARCH__ / 10;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  to->wgmma = 1;
#endif
}

}  // namespace

GpuTraits ProbeGpu(int ordinal) {
  cudaDeviceProp properties{};
  STOCH_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  int clusters = 0;
  STOCH_CUDA(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, ordinal));
  const Buffer found = AllocatePinned(sizeof(Compiled));
  auto* compiled = static_cast<Compiled*>(found.data());
  *compiled = {};
  ProbeKernel<<<1, 1>>>(compiled);
  STOCH_CUDA_LAUNCH("ProbeKernel");
  STOCH_CUDA(cudaDeviceSynchronize());

  GpuTraits traits;
  traits.compute_capability = properties.major * 10 + properties.minor;
  traits.code_architecture = compiled->architecture;
  traits.sm_count = properties.multiProcessorCount;
  traits.max_shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  traits.has_hopper_code = compiled->architecture >= 90;
  traits.has_clusters = traits.has_hopper_code && clusters != 0;
  traits.has_binary_mma = properties.major < 10;
  traits.has_wgmma = compiled->wgmma != 0;
  return LimitForTests(traits);
}

void CheckSharedLimit(const GpuTraits& traits, const void* kernel, size_t dynamic_bytes) {
  cudaFuncAttributes attributes{};
  STOCH_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const auto bytes = static_cast<int64_t>(attributes.sharedSizeBytes + dynamic_bytes);
  if (bytes <= traits.max_shared_bytes) return;
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) != cudaSuccess) (void)cudaGetLastError();
  throw DeviceError("a block of " + std::string(name != nullptr ? name : "a kernel") + " needs " +
                    std::to_string(bytes) + " bytes of shared memory, the device has " +
                    std::to_string(traits.max_shared_bytes));
}

}  // namespace stoch::cuda
