// SPDX-License-Identifier: Apache-2.0
// To be preloaded, with failing_new.cc: allocations of a running program fail where a test says so.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/serve/faults/failing_new.h"
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

}  // namespace

bool stoch::test::IsToFail() noexcept {
  static Scarcity* const kScarcity = Map();
  static const int32_t kPid = getpid();
  return kScarcity != nullptr && kScarcity->pid.load() == kPid && kScarcity->Takes();
}
