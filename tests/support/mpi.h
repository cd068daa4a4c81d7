// SPDX-License-Identifier: Apache-2.0
// Whether ranks can be started here.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace stoch::test {

// "" or what is missing of a launcher and of libstoch_mpi.so next to the program.
inline std::string MissingMpi(const std::string& program) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) return "mpirun";
  const auto module = std::filesystem::path(program).parent_path() / "libstoch_mpi.so";
  return std::filesystem::exists(module) ? "" : module.string();
}

// Open MPI asks for these of root, and of hosts with fewer cores than ranks.
inline void AllowRanksHere() {
  for (const char* name :
       {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"}) {
    setenv(name, "1", 1);
  }
}

inline bool IsRequired(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string(value) == "1";
}

}  // namespace stoch::test

// Skips the test without a launcher, or fails it where STOCH_REQUIRE_MPI=1. In SetUp or a test's body.
#define STOCH_NEEDS_MPI(program)                                                                             \
  if (const std::string missing = stoch::test::MissingMpi(program); !missing.empty()) {                      \
    if (stoch::test::IsRequired("STOCH_REQUIRE_MPI")) FAIL() << "STOCH_REQUIRE_MPI=1, missing: " << missing; \
    GTEST_SKIP() << missing << " is not there (libopenmpi-dev and openmpi-bin, then configure again)";       \
  }                                                                                                          \
  stoch::test::AllowRanksHere()
