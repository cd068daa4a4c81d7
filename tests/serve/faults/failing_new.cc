// SPDX-License-Identifier: Apache-2.0
#include "tests/serve/faults/failing_new.h"

#include <cstdlib>
#include <new>

namespace {

void* AllocateOrThrow(size_t bytes) {
  void* memory = stoch::test::IsToFail() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  while (memory == nullptr) {
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
    memory = std::malloc(bytes == 0 ? 1 : bytes);
  }
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
