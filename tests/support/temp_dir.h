// SPDX-License-Identifier: Apache-2.0
// Folders and files that live as long as a test.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace stoch::test {

// A new empty folder under the system's temporary folder, removed with its content by the destructor.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Throw std::runtime_error where the file cannot be written or read.
void WriteFile(const std::filesystem::path& path, std::string_view content);
std::string ReadFile(const std::filesystem::path& path);

}  // namespace stoch::test
