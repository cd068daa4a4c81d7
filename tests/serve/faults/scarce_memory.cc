// SPDX-License-Identifier: Apache-2.0
// To be preloaded: an operator new that fails where a test says so.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/serve/faults/scarcity.h"

namespace {

using stoch::test::Scarcity;

Scarcity* Map() {
  const char* const path = std::getenv(stoch::test::kScarcityVariable);
  const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const page = mmap(nullptr, sizeof(Scarcity), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return page == MAP_FAILED ? nullptr : static_cast<Scarcity*>(page);
}

bool IsToFail() {
  static Scarcity* const kScarcity = Map();
  static const int32_t kPid = getpid();
  if (kScarcity == nullptr || kScarcity->fail_at.load() == 0 || kScarcity->pid.load() != kPid) return false;
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  if (std::strncmp(name, kScarcity->thread, sizeof(name)) != 0) return false;
  return kScarcity->count.fetch_add(1) + 1 == kScarcity->fail_at.load();
}

void* AllocateOrThrow(size_t bytes) {
  void* memory = IsToFail() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
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
