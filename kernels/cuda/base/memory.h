// SPDX-License-Identifier: Apache-2.0
// Owning device and pinned host memory.
#pragma once

#include <cstddef>

#include "kernels/base/buffer.h"

namespace stoch::cuda {

// Device memory, content undefined; 256-byte aligned.
// Errors: OutOfMemory where the device has not enough free memory (wanted, free); CudaError otherwise.
Buffer AllocateDevice(const Device& device, size_t bytes);

// Pinned host memory, for copies that overlap; content undefined. It has one address on the host and on every GPU
// (unified addressing), so it may also pass as memory of a `device`.
// Errors: OutOfMemory where the host has not enough; CudaError otherwise.
Buffer AllocatePinned(size_t bytes, const Device& device = {});

}  // namespace stoch::cuda
