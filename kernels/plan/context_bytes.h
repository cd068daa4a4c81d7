// SPDX-License-Identifier: Apache-2.0
// What a CUDA context takes of a GPU.
#pragma once

#include <cstdint>
#include <optional>

namespace stoch {

// Bytes of a context, from what the GPU's processes had taken together before it was made and after. A difference that
// no context makes is another process's, which began or ended meanwhile: the usual size then, as where nobody can be
// asked.
inline int64_t ContextBytes(std::optional<int64_t> before, std::optional<int64_t> after) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  constexpr int64_t kUsual = 540 * kMiB;  // of a driver of today
  constexpr int64_t kLeast = 96 * kMiB;
  constexpr int64_t kMost = 1536 * kMiB;
  if (!before || !after) return kUsual;
  const int64_t measured = *after - *before;
  return measured < kLeast || measured > kMost ? kUsual : measured;
}

}  // namespace stoch
