// SPDX-License-Identifier: Apache-2.0
// What this binary was built from and what it can use.
#pragma once

#include <string>

namespace stoch::cli {

// "stoch 0.1.0", then one line each: commit, compiler, CUDA, backends, this machine's CPU kernels.
std::string VersionText();
std::string VersionLine();  // "stoch 0.1.0"
// The commit alone, "-dirty" behind it where files had changed.
std::string Commit();

}  // namespace stoch::cli
