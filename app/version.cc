// SPDX-License-Identifier: Apache-2.0
#include "app/version.h"

#include <fmt/format.h>

#include "app/build_facts.h"
#include "app/cpu_variants.h"
#include "kernels/registry.h"

namespace stoch::cli {
namespace {

std::string Compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace

std::string Commit() { return STOCH_COMMIT; }

std::string VersionLine() { return fmt::format("stoch {}", STOCH_VERSION); }

std::string VersionText() {
  return fmt::format(
      "{}\n"
      "commit: {}\n"
      "compiler: {}, {}\n"
      "CUDA: {}\n"
      "backends: {}\n"
      "CPU kernels usable here: {}",
      VersionLine(), STOCH_COMMIT, Compiler(), STOCH_BUILD_TYPE, STOCH_CUDA_VERSION, fmt::join(BuiltBackends(), ", "),
      fmt::join(UsableCpuVariants(), ", "));
}

}  // namespace stoch::cli
