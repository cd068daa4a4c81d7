// SPDX-License-Identifier: Apache-2.0
// Rings of GPUs whose hops take a route of the test's choice.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace stoch::test {

inline constexpr const char* kHopRoutes[] = {"peer", "host"};

// Why hops between the first two devices of a backend cannot take a route; empty where they can.
inline std::string HopRouteProblem(const Backend& backend, std::string_view route) {
  const DeviceLink link = backend.links().front();
  if (route == "peer") {
    const char* off = std::getenv("NCCL_P2P_DISABLE");
    if (off != nullptr && std::string_view(off) == "1") return "hops to peers need NCCL_P2P_DISABLE unset";
    if (!link.direct) return link.detail;
  }
  return {};
}

// Whether a machine without a route is an error, as in backends_under_test.h: two GPUs are asked for.
inline bool AreTwoGpusRequired() {
  const char* required = std::getenv("STOCH_REQUIRE_CUDA");
  return required != nullptr && std::atoi(required) > 1;
}

}  // namespace stoch::test

// Skips by name where the devices of a backend have no such route; a failure under STOCH_REQUIRE_CUDA=2.
#define STOCH_NEED_HOP_ROUTE(backend, route)                                                     \
  if (const std::string why = ::stoch::test::HopRouteProblem(*(backend), route); !why.empty()) { \
    if (::stoch::test::AreTwoGpusRequired()) FAIL() << why;                                      \
    GTEST_SKIP() << why;                                                                         \
  }                                                                                              \
  static_assert(true)
