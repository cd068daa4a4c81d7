// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace stoch::serve {
namespace {

constexpr size_t kBytes = 1 << 20;

std::atomic<void*> reserve{nullptr};
thread_local int uses = 0;

void OnNoMemory() {
  void* const block = uses > 0 ? reserve.exchange(nullptr) : nullptr;
  if (block == nullptr) throw std::bad_alloc();
  std::free(block);
}

void Fill() {
  if (reserve.load() != nullptr) return;
  void* none = nullptr;
  void* const block = std::malloc(kBytes);
  if (block != nullptr && !reserve.compare_exchange_strong(none, block)) std::free(block);
}

}  // namespace

void MemoryReserve::Install() {
  Fill();
  std::set_new_handler(OnNoMemory);
}

ReserveUse::ReserveUse() { ++uses; }

ReserveUse::~ReserveUse() {
  if (--uses == 0) Fill();
}

}  // namespace stoch::serve
