// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/demo_model.h"

#include <filesystem>

#include "kernels/base/error.h"

namespace stoch::cli {

std::string DemoModelFolder() {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error); folder.has_relative_path();) {
    folder = folder.parent_path();
    const fs::path candidate = folder / "demo";
    if (fs::exists(candidate / "config.json", error)) return candidate.string();
  }
  throw InvalidInput("no demo model was found near this binary; give --model DIR");
}

}  // namespace stoch::cli
