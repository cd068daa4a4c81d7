// SPDX-License-Identifier: Apache-2.0
// One place chooses: routes are values of an enum, plans have no flags, and only kernels/plan reads traits that a choice depends on.
#include <algorithm>
#include <array>
#include <regex>

#include "tests/policy/rules.h"
#include "tests/policy/text.h"

namespace stoch::test {
namespace {

std::string WithoutComment(const std::string& line) { return line.substr(0, line.find("//")); }

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

std::vector<std::string> CheckTemplates(const SourceFile& file) {
  constexpr int kMostFlags = 3;
  static const std::regex kFlag(R"(\bbool\b)");
  std::vector<std::string> found;
  if (!StartsWith(file.path, "kernels/cuda/") || !IsSource(file.path)) return found;
  int depth = 0;  // of angle brackets; 0: outside of a template's parameters
  size_t begin = 0;
  std::ptrdiff_t flags = 0;
  ForLines(file, [&](size_t number, const std::string& line) {
    std::string code = WithoutComment(line);
    if (depth == 0) {
      const size_t at = code.find("template <");
      if (at == std::string::npos) return;
      code = code.substr(at);
      begin = number;
      flags = 0;
    }
    size_t end = 0;
    for (; end < code.size(); ++end) {
      depth += code[end] == '<' ? 1 : code[end] == '>' ? -1 : 0;
      if (code[end] == '>' && depth == 0) break;
    }
    code.resize(std::min(end, code.size()));
    flags += std::distance(std::sregex_iterator(code.begin(), code.end(), kFlag), std::sregex_iterator());
    if (depth != 0 || flags <= kMostFlags) return;
    found.push_back(At(file, begin,
                       "a template of " + std::to_string(flags) + " booleans, at most " + std::to_string(kMostFlags) +
                           " are allowed: make one enum of the combinations that exist"));
  });
  return found;
}

std::vector<std::string> CheckChooser(const std::vector<SourceFile>& files) {
  // Reads of traits that choose no route.
  struct Exemption {
    std::string_view path, traits, why;
  };
  constexpr std::array kExemptions = {
      Exemption{"kernels/cuda/runtime/gpu_probe.cu", "", "fills traits in, and checks a limit that tests have lowered"},
      Exemption{"kernels/cuda/backend.cc", "is_shared", "knows who shares a GPU"},
      Exemption{"kernels/cuda/backend_memory.cc", "code_architecture has_wgmma", "shows them"},
      Exemption{"kernels/cuda/runtime/launch.h", "has_hopper_code is_limited", "attributes of a launch (PDL)"},
      Exemption{"kernels/cuda/runtime/cluster_launch.h", "has_hopper_code", "attributes of a launch (PDL)"},
      Exemption{"kernels/cuda/runtime/context.cc", "has_hopper_code", "rows are posted only with PDL"},
      Exemption{"kernels/cuda/fabric/comm/shared_rows.cc", "has_hopper_code", "rows are posted only with PDL"},
      Exemption{"kernels/cuda/runtime/pass.cu", "max_packed_positions", "size of a batch"},
      Exemption{"kernels/cuda/rows.cu", "has_clusters", "blocks of a row: a cluster or one"},
      Exemption{"kernels/cuda/sampling/query_launch.cuh", "has_clusters", "blocks of a row: a cluster or one"},
      Exemption{"kernels/cuda/sampling/compare.cu", "has_clusters", "blocks of a row: a cluster or one"},
  };
  std::vector<std::string> found;
  std::vector<std::string> traits;
  static const std::regex kMember(R"(^  (?:bool|int|int32_t|int64_t) (\w+) = .*;.*)");
  for (const SourceFile& file : files) {
    if (file.path != "kernels/plan/gpu_traits.h") continue;
    ForLines(file, [&](size_t, const std::string& line) {
      std::smatch match;
      // sm_count sizes grids.
      if (std::regex_match(line, match, kMember) && match[1] != "sm_count") traits.push_back(match[1]);
    });
  }
  if (traits.empty()) return {"kernels/plan/gpu_traits.h:0: has no traits that the rule of choices can look for"};
  std::string any = "(?:\\.|->)(";
  for (const std::string& trait : traits) any += (any.back() == '(' ? "" : "|") + trait;
  const std::regex read(any + ")\\b");
  for (const SourceFile& file : files) {
    const bool chooses = StartsWith(file.path, "kernels/plan/");
    if (!IsSource(file.path) || chooses || StartsWith(file.path, "tests/") || StartsWith(file.path, "bench/")) continue;
    const auto* exemption = std::find_if(kExemptions.begin(), kExemptions.end(),
                                         [&](const Exemption& each) { return each.path == file.path; });
    const std::string may = exemption == kExemptions.end() ? "none" : std::string(exemption->traits);
    if (may.empty()) continue;
    ForLines(file, [&](size_t number, const std::string& line) {
      const std::string code = WithoutComment(line);
      for (auto it = std::sregex_iterator(code.begin(), code.end(), read); it != std::sregex_iterator(); ++it) {
        const std::string trait = (*it)[1].str();
        if ((" " + may + " ").find(" " + trait + " ") != std::string::npos) continue;
        found.push_back(
            At(file, number, "chooses by " + trait + ": kernels/plan chooses, everything else reads plans"));
      }
    });
  }
  return found;
}

}  // namespace stoch::test
