// Owning device and pinned host memory.
#pragma once

#include <cstddef>

#include "kernels/base/buffer.h"

namespace stoch::cuda {

// What:   device memory, content undefined; 256-byte aligned.
// Errors: InvalidInput where the device has not enough free memory (wanted, free); CudaError otherwise.
Buffer AllocateDevice(const Device& device, size_t bytes);

// What: page-locked host memory, for copies that overlap.
Buffer AllocatePinned(size_t bytes);

// What: the same, zero-filled, as memory of `device`, whose kernels may use it at the same address.
Buffer AllocateMapped(const Device& device, size_t bytes);

}  // namespace stoch::cuda
