// SPDX-License-Identifier: Apache-2.0
// Device memory that a CUDA context takes.
#pragma once

#include <cstdint>
#include <optional>

namespace stoch {

// Bytes of a CUDA context. before, after: bytes of the GPU that all processes used just before the context was made and
// just after; nullopt: unknown. The result is their difference, or kUsual if one is unknown or the difference is out of
// range for a context, because another process began or ended meanwhile.
inline int64_t ContextBytes(std::optional<int64_t> before, std::optional<int64_t> after) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  constexpr int64_t kUsual = 540 * kMiB;  // size with current drivers
  constexpr int64_t kLeast = 96 * kMiB;
  constexpr int64_t kMost = 1536 * kMiB;
  if (!before || !after) return kUsual;
  const int64_t measured = *after - *before;
  return measured < kLeast || measured > kMost ? kUsual : measured;
}

}  // namespace stoch
