// SPDX-License-Identifier: Apache-2.0
// Which allocations of which thread find no memory. A test shares it with a program that it makes short of memory by a
// page in a file, which STOCH_SCARCITY names.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace stoch::test {

struct Scarcity {
  std::atomic<int32_t> pid;      // of the program; its children have memory
  std::atomic<int64_t> fail_at;  // the allocation, counted from 1, that finds none; 0: none is counted
  std::atomic<int64_t> fails;    // how many from that one on find none
  std::atomic<int64_t> count;    // of them so far
  char thread[16];               // whose allocations they are, by its name; set while fail_at is 0

  // Whether allocations of this thread are counted.
  bool Watches() const {
    if (fail_at.load() == 0) return false;
    char name[sizeof(thread)] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return std::strncmp(name, thread, sizeof(name)) == 0;
  }
  // Counts an allocation of this thread. Returns whether it is to fail.
  bool Takes() {
    if (!Watches()) return false;
    const int64_t number = count.fetch_add(1) + 1;
    return number >= fail_at.load() && number < fail_at.load() + fails.load();
  }
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

inline constexpr const char* kScarcityVariable = "STOCH_SCARCITY";

}  // namespace stoch::test
