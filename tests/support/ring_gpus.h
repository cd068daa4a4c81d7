// SPDX-License-Identifier: Apache-2.0
// Eight devices on one GPU, for tests of positions that are dealt over GPUs. Included before anything opens a backend.
#pragma once

#include <cstdlib>

#include "tests/support/backends_under_test.h"

namespace stoch::test {

inline const int kLogicalGpus = setenv("STOCH_TEST_LOGICAL_GPUS", "8", 1);

inline constexpr BackendUnderTest kRingGpus{"cuda:0,1,2,3,4,5,6,7", "", 0};

}  // namespace stoch::test

// Opens `backend` from `spec`, or skips where it is not there or has no RingAttention.
// NOLINTBEGIN(bugprone-macro-parentheses): `backend` is a name
#define STOCH_OPEN_RING_OR_SKIP(backend, spec) \
  STOCH_OPEN_OR_SKIP(backend, spec);           \
  if (!backend->has_ring_attention()) GTEST_SKIP() << backend->name() << " has no RingAttention"
// NOLINTEND(bugprone-macro-parentheses)
