// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/nvml_memory.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

namespace stoch::cuda {
namespace {

// Declarations from nvml.h, which is not needed for the build: nvmlMemory_t, in bytes, and functions that return 0 on
// success.
struct Memory {
  unsigned long long total = 0, free = 0, used = 0;
};
using Init = int (*)();
using HandleByPciBusId = int (*)(const char*, void**);
using GetMemoryInfo = int (*)(void*, Memory*);

struct Nvml {
  HandleByPciBusId handle_by_bus = nullptr;
  GetMemoryInfo memory_info = nullptr;
};

Nvml Load() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  const auto init = reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"));
  Nvml nvml;
  nvml.handle_by_bus = reinterpret_cast<HandleByPciBusId>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  nvml.memory_info = reinterpret_cast<GetMemoryInfo>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
  if (init == nullptr || nvml.handle_by_bus == nullptr || nvml.memory_info == nullptr || init() != 0) return {};
  return nvml;
}

}  // namespace

std::optional<int64_t> UsedDeviceBytes(int ordinal) {
  static const Nvml nvml = Load();
  char bus[32] = {};
  void* handle = nullptr;
  Memory memory;
  if (nvml.memory_info == nullptr || cudaDeviceGetPCIBusId(bus, sizeof(bus), ordinal) != cudaSuccess ||
      nvml.handle_by_bus(bus, &handle) != 0 || nvml.memory_info(handle, &memory) != 0) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return static_cast<int64_t>(memory.used);
}

}  // namespace stoch::cuda
