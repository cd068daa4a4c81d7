// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <new>

namespace stoch::cpu {
namespace {

constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes) { return bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void FreeMemory::operator()(void* memory) const noexcept { munmap(memory, RoundUp(bytes)); }

void* AllocateMemory(size_t bytes) {
  const size_t size = RoundUp(bytes);
  if (size < bytes) throw std::bad_alloc();
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, size, MADV_HUGEPAGE);  // a hint; may fail
  return memory;
}

}  // namespace stoch::cpu
