#include "tools/stoch/cpu_variants.h"

#include "kernels/base/error.h"
#include "kernels/registry.h"

namespace stoch::cli {

std::vector<std::string> UsableCpuVariants() {
  std::vector<std::string> usable;
  for (const char* variant : {"scalar", "avx2", "avx512vbmi"}) {
    // The registry knows what the machine has: a variant it lacks is refused by name.
    try {
      OpenBackend("cpu", {.threads = 1, .cpu_variant = variant}, nullptr);
      usable.emplace_back(variant);
    } catch (const InvalidInput&) {
      continue;
    }
  }
  return usable;
}

}  // namespace stoch::cli
