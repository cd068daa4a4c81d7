// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shared_folder.h"

#include <cstdlib>
#include <stdexcept>

namespace stoch::test {

std::optional<std::filesystem::path> FindSharedFolder() {
  if (const char* named = std::getenv("STOCH_SHARED"); named != nullptr && *named != '\0') {
    if (!std::filesystem::is_directory(named)) {
      throw std::runtime_error(std::string("STOCH_SHARED: expected a folder, got ") + named);
    }
    return named;
  }
  const std::filesystem::path sibling = std::filesystem::path(STOCH_SOURCE_DIR).parent_path() / "shared";
  if (std::filesystem::is_directory(sibling / "goldens")) return sibling;  // another folder may bear that name
  return std::nullopt;
}

std::filesystem::path SharedFolder() {
  const std::optional<std::filesystem::path> folder = FindSharedFolder();
  if (!folder) throw std::runtime_error("no reference data: set STOCH_SHARED");
  return *folder;
}

}  // namespace stoch::test
