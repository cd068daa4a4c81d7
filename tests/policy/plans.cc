// SPDX-License-Identifier: Apache-2.0
// One place chooses: routes are values of an enum, plans have no flags, and kernels read no trait that a choice depends on.
#include <algorithm>
#include <array>
#include <regex>
#include <sstream>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

std::string WithoutComment(const std::string& line) { return line.substr(0, line.find("//")); }

template <typename See>
void ForLines(const SourceFile& file, const See& see) {
  std::istringstream stream(file.text);
  size_t number = 0;
  for (std::string line; std::getline(stream, line);) see(++number, line);
}

std::string At(const SourceFile& file, size_t line, const std::string& sentence) {
  return file.path + ":" + std::to_string(line) + ": " + sentence;
}

// The enumerators of a route enum: names, lines, comments.
struct Enumerator {
  std::string name;
  size_t line = 0;
  std::string comment;
};
std::vector<Enumerator> RoutesOf(const SourceFile& file) {
  static const std::regex kEntry(R"(^\s+(k\w+),\s*(?://\s*(.*))?$)");
  std::vector<Enumerator> routes;
  bool inside = false;
  ForLines(file, [&](size_t number, const std::string& line) {
    if (line.find("enum class") != std::string::npos && line.find("Route ") != std::string::npos) inside = true;
    if (inside && StartsWith(line, "};")) inside = false;
    std::smatch match;
    if (inside && std::regex_match(line, match, kEntry)) routes.push_back({match[1], number, match[2]});
  });
  return routes;
}

bool HasWord(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("\\b" + word + "\\b"));
}

}  // namespace

std::vector<std::string> CheckPlans(const SourceFile& file) {
  static const std::regex kPlan(R"(^struct \w*Plan \{$)");
  static const std::regex kFlag(R"(^\s+bool (\w+)( =.*)?;\s*$)");
  std::vector<std::string> found;
  if (!StartsWith(file.path, "kernels/plan/")) return found;
  bool inside = false;
  ForLines(file, [&](size_t number, const std::string& line) {
    const std::string code = WithoutComment(line);
    if (std::regex_match(code, kPlan)) inside = true;
    if (StartsWith(code, "}")) inside = false;
    std::smatch match;
    if (inside && std::regex_match(code, match, kFlag)) {
      found.push_back(
          At(file, number,
             "a plan has the flag " + match[1].str() + ": make it a value of an enum, or the plan optional"));
    }
  });
  return found;
}

std::vector<std::string> CheckChooser(const SourceFile& file) {
  // What only choices depend on; gpu_probe fills it in, the backend shows it and knows who shares a GPU.
  constexpr std::array kTraits = {"has_binary_mma", "has_wgmma", "is_shared",      "split_from",
                                  "lookup_from",    "list_from", "max_score_bytes"};
  constexpr std::array kMayName = {"kernels/cuda/runtime/gpu_probe.cu", "kernels/cuda/backend.cc",
                                   "kernels/cuda/backend_memory.cc",
                                   "kernels/cuda/linear/fixed_tile.cu"};  // one route: an instruction of its kernel
  std::vector<std::string> found;
  if (!StartsWith(file.path, "kernels/cuda/") || !IsSource(file.path)) return found;
  if (std::find(kMayName.begin(), kMayName.end(), file.path) != kMayName.end()) return found;
  ForLines(file, [&](size_t number, const std::string& line) {
    for (const char* trait : kTraits) {
      if (WithoutComment(line).find(std::string("traits.") + trait) == std::string::npos) continue;
      found.push_back(
          At(file, number, std::string("chooses by ") + trait + ": kernels/plan chooses, kernels read plans"));
    }
  });
  return found;
}

std::vector<std::string> CheckRoutes(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    const size_t name = file.path.rfind("/route.h");
    if (!StartsWith(file.path, "kernels/plan/") || name == std::string::npos) continue;
    const std::string folder = file.path.substr(0, name + 1);
    for (const Enumerator& route : RoutesOf(file)) {
      if (!std::regex_search(route.comment, std::regex(R"(\.(cu|cc)\b|^cuBLAS)"))) {
        found.push_back(At(file, route.line, route.name + " names no source that runs it"));
      }
      const bool is_taken = std::any_of(files.begin(), files.end(), [&](const SourceFile& other) {
        const bool plans =
            StartsWith(other.path, folder) && other.path != folder + "route.cc" && other.path != file.path;
        return plans && IsSource(other.path) && HasWord(other.text, route.name);
      });
      if (!is_taken) found.push_back(At(file, route.line, route.name + " is a route that no plan takes"));
    }
  }
  return found;
}

}  // namespace stoch::test
