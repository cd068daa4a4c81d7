// SPDX-License-Identifier: Apache-2.0
// Finds out what a GPU, and the code of this program that runs on it, can do.
#pragma once

#include <cstddef>

#include "kernels/plan/gpu_traits.h"

namespace stoch::cuda {

// The traits of device `ordinal`, limited by the environment (LimitForTests). Runs a kernel of one thread, which says
// what it was compiled for: of native code and the PTX of other architectures only the driver knows which one runs, and
// every kernel of the program is built for the same list.
// Requires: the device is current.
// Errors: CudaError, InvalidInput for a bad limit. Async: waits.
GpuTraits ProbeGpu(int ordinal);

// Refuses a kernel whose static and dynamic shared memory together are more than the traits allow, as a device of these
// traits would.
// Errors: DeviceError naming the bytes.
void CheckSharedLimit(const GpuTraits& traits, const void* kernel, size_t dynamic_bytes);

}  // namespace stoch::cuda
