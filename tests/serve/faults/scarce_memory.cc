// SPDX-License-Identifier: Apache-2.0
// To be preloaded, with failing_new.cc: allocations of a running program fail where a test says so.
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

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

// The code of libsentencepiece, empty where the program has none. Its protobuf messages end the process when they are
// destroyed half made (docs/limits.md), so its allocations, which no code of this project can mend, do not fail.
struct Code {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool Contains(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= begin && at < end;
  }
};

int FindSentencePiece(dl_phdr_info* library, size_t, void* found) {
  if (std::strstr(library->dlpi_name, "libsentencepiece") == nullptr) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
    *static_cast<Code*>(found) = {begin, begin + segment.p_memsz};
  }
  return 1;
}

// Whether libsentencepiece is among the callers. The first call may allocate (it loads the unwinder).
bool IsOfSentencePiece() {
  static const Code kCode = [] {
    Code code;
    dl_iterate_phdr(FindSentencePiece, &code);
    return code;
  }();
  constexpr int kDepth = 12;
  void* callers[kDepth];
  const int depth = backtrace(callers, kDepth);
  for (int i = 0; i < depth; ++i) {
    if (kCode.Contains(callers[i])) return true;
  }
  return false;
}

}  // namespace

bool stoch::test::IsToFail() noexcept {
  static Scarcity* const kScarcity = Map();
  static const int32_t kPid = getpid();
  return kScarcity != nullptr && kScarcity->pid.load() == kPid && kScarcity->Watches() && !IsOfSentencePiece() &&
         kScarcity->Takes();
}
