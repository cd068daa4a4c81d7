// SPDX-License-Identifier: Apache-2.0
// What of a sequence its rows may see, so that nothing else travels between devices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/calls.h"

namespace stoch {

// Rows at `position` and later see no position before this one: their window begins here or later, and so do the
// segments of dilated attention that they are in.
inline int64_t FirstSeen(const AttentionCall& call, int64_t position) {
  const int64_t first = call.window > 0 ? std::max<int64_t>(position - call.window + 1, 0) : 0;
  if (call.dilated.empty()) return first;
  int64_t segment = position;
  for (const DilatedPair& pair : call.dilated) segment = std::min(segment, position / pair.segment * pair.segment);
  return std::max(first, segment);
}

}  // namespace stoch
