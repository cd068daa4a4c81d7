// SPDX-License-Identifier: Apache-2.0
#include "app/demo_model.h"

#include <dlfcn.h>

#include <filesystem>

#include "app/options/hub_cache.h"
#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

namespace fs = std::filesystem;

bool IsModel(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "config.json", error);
}

// The file that holds this code. The loader knows a program by the name it was started with, which need be no path.
fs::path OwnFile() {
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&DemoModelFolder), &info) == 0 || info.dli_fname == nullptr) return program;
  const fs::path module = fs::canonical(info.dli_fname, error);
  return error || module.extension() != ".so" ? program : module;
}

}  // namespace

std::string DemoModelFolder() {
  for (fs::path folder = OwnFile(); folder.has_relative_path();) {
    folder = folder.parent_path();
    for (const char* place : {"demo", "share/stoch/demo"}) {
      if (IsModel(folder / place)) return (folder / place).string();
    }
  }
  throw InvalidInput("the demo model is not installed next to this program; give --model DIR");
}

std::string ModelPath(const std::string& model) {
  if (model == "demo" && !IsModel(model)) return DemoModelFolder();
  return IsHubName(model) ? HubCacheFolder(model) : model;
}

}  // namespace stoch::cli
