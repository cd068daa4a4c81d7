// SPDX-License-Identifier: Apache-2.0
// The CPU kernels that can run on this machine.
#pragma once

#include <string>
#include <vector>

namespace stoch::cli {

// "scalar" and what the processor adds to it, such as "avx2".
std::vector<std::string> UsableCpuVariants();

}  // namespace stoch::cli
