#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

bool IsText(const fs::path& path) {
  static const std::vector<std::string> suffixes = {".h",  ".cc", ".cu",   ".cuh", ".cmake", ".md", ".txt",
                                                    ".py", ".sh", ".json", ".yml", ".html",  ""};
  return std::find(suffixes.begin(), suffixes.end(), path.extension().string()) != suffixes.end();
}

bool IsSkipped(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return (name[0] == '.' && name != ".ci") || name == "build" || name.rfind("build-", 0) == 0;
}

}  // namespace

std::vector<SourceFile> ReadTree(const std::string& root) {
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    if (it->is_directory() && IsSkipped(it->path())) it.disable_recursion_pending();
    if (!it->is_regular_file() || !IsText(it->path())) continue;
    if (it->path().filename() == ".git") continue;  // of a worktree: a file with a path of this machine
    std::ifstream stream(it->path(), std::ios::binary);
    files.push_back({fs::relative(it->path(), root).generic_string(),
                     std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>())});
  }
  return files;
}

}  // namespace stoch::test
