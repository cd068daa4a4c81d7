// SPDX-License-Identifier: Apache-2.0
// Aligned, zero-filled memory for weights, caches and buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace stoch::cpu {

struct FreeMemory {
  size_t bytes = 0;
  void operator()(void* memory) const noexcept;
};

// An owning array of T (trivial types only), aligned to 64 bytes at least; large ones lie on huge pages where the
// system gives them, because a decode step walks every weight and would miss the TLB on every 4 KiB otherwise.
template <typename T>
using Array = std::unique_ptr<T[], FreeMemory>;

// Zero-filled bytes, never null. Errors: std::bad_alloc.
void* AllocateMemory(size_t bytes);

template <typename T>
Array<T> MakeArray(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  return Array<T>(static_cast<T*>(AllocateMemory(bytes)), FreeMemory{bytes});
}

}  // namespace stoch::cpu
