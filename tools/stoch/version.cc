// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/version.h"

#include <fmt/format.h>

#include "kernels/registry.h"
#include "tools/stoch/build_facts.h"
#include "tools/stoch/cpu_variants.h"

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
