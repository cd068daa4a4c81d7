// SPDX-License-Identifier: Apache-2.0
// A file system of SQLite that fails where a test wants it to.
#pragma once

#include <cstdint>

namespace stoch::test {

inline constexpr const char* kFaultyVfs = "faulty";

// What happens to writes, truncations and syncs, counted from 1; 0: nothing.
struct Faults {
  int64_t kill_at = 0;    // the process kills itself,
  int kill_part = 0;      // with 0 nothing, 1 half, 2 all of this write done
  int64_t full_from = 0;  // these and all later writes find the disk full
};

// Registers kFaultyVfs, and counts from 1 again.
void RegisterFaultyVfs(const Faults& faults);
// How many there were.
int64_t FaultyVfsWrites();

}  // namespace stoch::test
