// SPDX-License-Identifier: Apache-2.0
// Offsets of arrays that lie one after the other in scratch memory.
#pragma once

#include <cstdint>

namespace stoch {

// Adds up arrays as the workspace of a device places them: each begins at a multiple of kAlignment.
class ScratchLayout {
 public:
  static constexpr int64_t kAlignment = 256;  // alignment of every array, if the memory has it too

  static constexpr int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Both return the offset of the new array. Requires: bytes, count >= 0.
  constexpr int64_t AddBytes(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += Aligned(bytes);
    return at;
  }
  template <typename T>
  constexpr int64_t Add(int64_t count) {
    return AddBytes(count * static_cast<int64_t>(sizeof(T)));
  }
  // Bytes of all arrays, a multiple of kAlignment.
  constexpr int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace stoch
