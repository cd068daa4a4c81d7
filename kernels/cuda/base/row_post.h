// SPDX-License-Identifier: Apache-2.0
// Where a kernel posts its row of outputs for the kernel behind it.
#pragma once

#include <cstdint>

namespace stoch::cuda {

// Where a kernel posts, and what it sets to 0 for those behind it.
struct RowPost {
  uint32_t* words = nullptr;  // null: it does not post
  uint32_t* clear = nullptr;  // 16-byte aligned
  int64_t clear_words = 0;    // a multiple of 4

  explicit operator bool() const { return words != nullptr; }
};

}  // namespace stoch::cuda
