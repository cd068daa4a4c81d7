// SPDX-License-Identifier: Apache-2.0
#include "app/cpu_variants.h"

#include "kernels/registry.h"

namespace stoch::cli {

std::vector<std::string> UsableCpuVariants() {
  const std::vector<std::string_view> usable = stoch::UsableCpuVariants();
  return {usable.begin(), usable.end()};
}

}  // namespace stoch::cli
