// SPDX-License-Identifier: Apache-2.0
// Finds out the capabilities of a GPU and of this program's code on that GPU.
#pragma once

#include <cstddef>

#include "kernels/plan/gpu_traits.h"

namespace stoch::cuda {

// The traits of CUDA ordinal `ordinal`, limited by environment variables (LimitForTests). Runs a one-thread kernel that
// reports the architecture it was compiled for: a program holds native code and PTX for several architectures, only the
// driver knows which one runs, and all kernels are built for the same list.
// Requires: the device is current.
// Errors: CudaError; InvalidInput for a bad value of an environment variable. Async: waits for the device.
GpuTraits ProbeGpu(int ordinal);

// Throws if a block of `kernel` needs more shared memory, static plus dynamic_bytes, than the traits allow. Used when
// the traits are limited for tests, because the real device would accept the launch.
// Errors: DeviceError, naming the bytes.
void CheckSharedLimit(const GpuTraits& traits, const void* kernel, size_t dynamic_bytes);

}  // namespace stoch::cuda
