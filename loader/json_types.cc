// SPDX-License-Identifier: Apache-2.0
#include "loader/json_types.h"

#include <array>
#include <chrono>
#include <functional>
#include <thread>

namespace stoch {
namespace {

constexpr size_t kBytes = 16 << 10;
constexpr std::chrono::milliseconds kPause{1};

// Blocks follow one another, and all of them are free again when the last one is.
struct Blocks {
  alignas(std::max_align_t) std::array<std::byte, kBytes> bytes;
  size_t used;
  int count;
};
thread_local Blocks blocks;

bool IsBlock(const void* memory) {
  const auto* const at = static_cast<const std::byte*>(memory);
  return !std::less<>()(at, blocks.bytes.data()) && std::less<>()(at, blocks.bytes.data() + kBytes);
}

}  // namespace

void* AllocateToRelease(size_t bytes) noexcept {
  for (;; std::this_thread::sleep_for(kPause)) {
    if (void* const memory = ::operator new(bytes, std::nothrow)) return memory;
    if (bytes > kBytes - blocks.used) continue;
    void* const block = blocks.bytes.data() + blocks.used;
    constexpr size_t kAlign = alignof(std::max_align_t);
    blocks.used += (bytes + kAlign - 1) / kAlign * kAlign;
    ++blocks.count;
    return block;
  }
}

void FreeToRelease(void* memory) noexcept {
  if (!IsBlock(memory)) return ::operator delete(memory);
  if (--blocks.count == 0) blocks.used = 0;
}

}  // namespace stoch
