// The CPU kernels that can run on this machine.
#pragma once

#include <string>
#include <vector>

namespace stoch::cli {

// "scalar" and what the processor adds to it: "avx2", "avx512vbmi".
std::vector<std::string> UsableCpuVariants();

}  // namespace stoch::cli
