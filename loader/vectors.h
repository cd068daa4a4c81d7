// SPDX-License-Identifier: Apache-2.0
// Eight elements in the compiler's own vectors: as wide as the instruction set they are compiled for allows. Internal to
// the files that turn stored numbers into floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stoch::vectors {

inline constexpr int64_t kVector = 8;
using Bytes = uint8_t __attribute__((vector_size(kVector)));
using Words = uint16_t __attribute__((vector_size(2 * kVector)));
using Ints = int32_t __attribute__((vector_size(4 * kVector)));
using Unsigned = uint32_t __attribute__((vector_size(4 * kVector)));
using Floats = float __attribute__((vector_size(4 * kVector)));

__attribute__((always_inline)) inline Bytes BytesAt(const std::byte* at) {
  Bytes bytes;
  std::memcpy(&bytes, at, sizeof(bytes));
  return bytes;
}

}  // namespace stoch::vectors
