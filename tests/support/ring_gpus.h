// SPDX-License-Identifier: Apache-2.0
// Eight devices on one GPU, for tests of positions that are dealt over GPUs. Included before anything opens a backend.
#pragma once

#include <cstdlib>

#include "tests/support/backends_under_test.h"

namespace stoch::test {

inline const int kLogicalGpus = setenv("STOCH_TEST_LOGICAL_GPUS", "8", 1);

inline constexpr BackendUnderTest kRingGpus{"cuda:0,1,2,3,4,5,6,7", "", 0};

}  // namespace stoch::test
