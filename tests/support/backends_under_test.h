// SPDX-License-Identifier: Apache-2.0
// The backends that must agree bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/registry.h"

namespace stoch::test {

struct BackendUnderTest {
  const char* device;
  const char* cpu_variant;
  int threads;

  std::string Name() const {
    std::string name = *cpu_variant != '\0' ? std::string(cpu_variant) + "_" + std::to_string(threads) : device;
    for (char& c : name) {
      if (c == ':' || c == ',') c = '_';
    }
    return name;
  }
  friend std::ostream& operator<<(std::ostream& out, const BackendUnderTest& spec) { return out << spec.Name(); }
};

// The variants that are built for this processor's architecture; a machine that lacks one skips it.
inline std::vector<BackendUnderTest> BackendsUnderTest() {
  std::vector<BackendUnderTest> backends;
  for (const char* variant : {
         "scalar",
#if defined(__x86_64__)
             "avx2", "avx512bw", "avx512vbmi",
#elif defined(__aarch64__)
           "neon",
#endif
       }) {
    backends.push_back({"cpu", variant, 1});
    backends.push_back({"cpu", variant, 2});
  }
  backends.push_back({"cuda:0", "", 0});
  return backends;
}

// The CPU's fastest variant and the GPU: for tests of behaviour that has nothing to do with variants.
inline std::vector<BackendUnderTest> OneOfEachBackend() { return {{"cpu", "", 2}, {"cuda:0", "", 0}}; }

// Whether a machine without it is an error. STOCH_REQUIRE_CUDA says how many GPUs must be there.
inline bool IsRequired(const BackendUnderTest& spec) {
  const std::string_view device = spec.device;
  if (!device.starts_with("cuda")) return !std::string_view(spec.cpu_variant).starts_with("avx");
  const char* required = std::getenv("STOCH_REQUIRE_CUDA");
  return required != nullptr && std::count(device.begin(), device.end(), ',') < std::atoi(required);
}

// Opens it, or says why it is not there (`why`) and returns nullptr. The scalar reference is always there.
inline std::shared_ptr<Backend> TryOpen(const BackendUnderTest& spec, std::string* why) {
  BackendOptions options;
  options.threads = spec.threads;
  options.cpu_variant = spec.cpu_variant;
  try {
    return OpenBackend(spec.device, options, nullptr);
  } catch (const InvalidInput& error) {
    if (IsRequired(spec)) throw;
    *why = error.what();
    return nullptr;
  }
}

}  // namespace stoch::test

// Opens `backend` from `spec`, or skips visibly: STOCH_REQUIRE_CUDA=1 makes a missing GPU a failure, =2 two of them.
// NOLINTBEGIN(bugprone-macro-parentheses): `backend` is a name
#define STOCH_OPEN_OR_SKIP(backend, spec)                            \
  std::string backend##_why;                                         \
  const auto backend = ::stoch::test::TryOpen(spec, &backend##_why); \
  if (backend == nullptr) GTEST_SKIP() << backend##_why
// NOLINTEND(bugprone-macro-parentheses)
