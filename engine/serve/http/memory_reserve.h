// SPDX-License-Identifier: Apache-2.0
// Memory set aside for the end of memory. Destructors of JSON documents allocate (nlohmann 3.11 makes a stack of their
// values), so where there is none they would end the process.
#pragma once

namespace stoch::serve {

class MemoryReserve {
 public:
  // From now on this process has one. Any number of times.
  static void Install();
};

// While it lives, the first allocation of this thread that finds no memory gets what the reserve held. Others throw
// bad_alloc. The reserve is filled again when there is memory.
class ReserveUse {
 public:
  ReserveUse();
  ~ReserveUse();
  ReserveUse(const ReserveUse&) = delete;
  ReserveUse& operator=(const ReserveUse&) = delete;
};

}  // namespace stoch::serve
