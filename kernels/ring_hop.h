// SPDX-License-Identifier: Apache-2.0
// The words of a hop that is lost, for every backend.
#pragma once

#include <cstdint>

#include "kernels/ring.h"

namespace stoch {

// "layer 3 attention: hop 1 of 3 from cpu:0 to cpu:1 did not arrive within 5000 ms"; `what`: the words in between.
LostHop MakeLostHop(const RingHop& hop, const char* what, int64_t limit_ms);

}  // namespace stoch
