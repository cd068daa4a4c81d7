// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stoch {

// How kernels multiply bits: by binary mma.sync or, on GPUs that only emulate it, in a form for int8 products.
enum class BitProducts : uint8_t { kBinary, kInt8 };

}  // namespace stoch
