// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stoch {

// How kernels multiply bits: by binary mma.sync or, where a GPU has that in emulation only, in a form for int8 products.
enum class BitProducts : uint8_t { kBinary, kInt8 };

}  // namespace stoch
