// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

bool IsText(const fs::path& path) {
  static const std::vector<std::string> suffixes = {
      ".h",  ".cc",   ".cu",  ".cuh", ".cmake", ".md",   ".txt",   ".py", ".pyi", ".sh",  ".json", ".yml",
      ".in", ".html", ".map", ".svg", ".typed", ".toml", ".proto", ".js", ".css", ".tsv", ""};
  return std::find(suffixes.begin(), suffixes.end(), path.extension().string()) != suffixes.end();
}

bool IsSkipped(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return (name[0] == '.' && name != ".ci" && name != ".github") || name == "build" || name.rfind("build-", 0) == 0;
}

}  // namespace

std::vector<std::string> ListTree(const std::string& root) {
  std::vector<std::string> paths;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    if (it->is_directory() && IsSkipped(it->path())) it.disable_recursion_pending();
    if (it->path().filename() == ".git") continue;  // a file in a linked worktree
    if (it->is_regular_file()) paths.push_back(fs::relative(it->path(), root).generic_string());
  }
  return paths;
}

std::vector<SourceFile> ReadTree(const std::string& root) {
  std::vector<SourceFile> files;
  for (const std::string& path : ListTree(root)) {
    if (!IsText(path)) continue;
    std::ifstream stream(fs::path(root) / path, std::ios::binary);
    files.push_back({path, std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>())});
  }
  return files;
}

}  // namespace stoch::test
