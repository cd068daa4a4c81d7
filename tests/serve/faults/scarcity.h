// SPDX-License-Identifier: Apache-2.0
// What a test and the program that it makes short of memory share: a page in a file, which STOCH_SCARCITY names.
#pragma once

#include <atomic>
#include <cstdint>

namespace stoch::test {

struct Scarcity {
  std::atomic<int32_t> pid;      // of the program; its children have memory
  std::atomic<int64_t> fail_at;  // the allocation, counted from 1, that finds none; 0: none is counted
  std::atomic<int64_t> count;    // of them so far
  char thread[16];               // whose allocations they are, by its name; set while fail_at is 0
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

inline constexpr const char* kScarcityVariable = "STOCH_SCARCITY";

}  // namespace stoch::test
