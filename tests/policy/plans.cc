// SPDX-License-Identifier: Apache-2.0
// One place chooses: routes are values of an enum, plans have no flags, and only kernels/plan reads traits that a choice depends on.
#include <algorithm>
#include <array>
#include <regex>
#include <set>
#include <utility>

#include "tests/policy/rules.h"
#include "tests/policy/text.h"

namespace stoch::test {
namespace {

std::string WithoutComment(const std::string& line) { return line.substr(0, line.find("//")); }

// A struct or class of a file, and the lines of its members: those of structs in it, too, but not of functions.
struct Struct {
  const SourceFile* file = nullptr;
  std::string name;
  size_t line = 0;
  std::vector<std::pair<size_t, std::string>> members;  // number, line without its comment
};
std::vector<Struct> StructsOf(const SourceFile& file) {
  static const std::regex kBegin(R"(^(?:struct|class) (\w+)(?: final)?(?: : .*)? \{\s*$)");
  static const std::regex kNested(R"(^  (?:struct|class|union)\b.*\{\s*$)");
  std::vector<Struct> structs;
  bool inside = false, nested = false;
  ForLines(file, [&](size_t number, const std::string& line) {
    const std::string code = WithoutComment(line);
    std::smatch match;
    if (std::regex_match(code, match, kBegin)) {
      structs.push_back({&file, match[1], number, {}});
      inside = true;
      return;
    }
    if (StartsWith(code, "}")) inside = false;
    if (!inside) return;
    if (std::regex_match(code, kNested)) nested = true;
    if (StartsWith(code, "  }")) nested = false;
    const size_t indent = code.find_first_not_of(' ');
    if (indent == 2 || (nested && indent == 4)) structs.back().members.emplace_back(number, code);
  });
  return structs;
}

}  // namespace

std::vector<std::string> CheckPlans(const std::vector<SourceFile>& files) {
  // Structs with flags that functions return and that are no choices.
  struct Exemption {
    std::string_view name, why;
  };
  constexpr std::array kExemptions = {
      Exemption{"AttentionShape", "what is asked for: it comes from a cache, and plans are chosen for it"},
      Exemption{"AttentionPass", "what is asked for: the rows of a pass"},
      Exemption{"ScTraits", "what an operator has: choices read it"},
      Exemption{"MixedTraits", "what a weight has: choices read it"},
      Exemption{"GpuTraits", "what a GPU has: choices read it"},
  };
  static const std::regex kReturns(
      R"(^\s*(?:(?:static|constexpr|inline|\[\[nodiscard\]\]) )*(?:[\w:]+<)*(?:const )?(\w+)[>&*]* (?:\w+::)*\w+\(.*)");
  static const std::regex kWord(R"(\b[A-Z]\w*)");
  std::vector<Struct> structs;
  std::set<std::string> covered;
  for (const SourceFile& file : files) {
    if (!StartsWith(file.path, "kernels/plan/") || !IsSource(file.path)) continue;
    const std::vector<Struct> of_file = StructsOf(file);
    structs.insert(structs.end(), of_file.begin(), of_file.end());
    ForLines(file, [&](size_t, const std::string& line) {
      std::smatch match;
      const std::string code = WithoutComment(line);
      if (std::regex_match(code, match, kReturns)) covered.insert(match[1]);
    });
  }
  const auto is_exempt = [&](const std::string& name) {
    return std::any_of(kExemptions.begin(), kExemptions.end(),
                       [&](const Exemption& each) { return each.name == name; });
  };
  for (const Struct& each : structs) {
    if (each.name.size() > 4 && each.name.compare(each.name.size() - 4, 4, "Plan") == 0) covered.insert(each.name);
  }
  // Members of what is covered are covered, too.
  for (size_t before = 0; before != covered.size();) {
    before = covered.size();
    for (const Struct& each : structs) {
      if (covered.count(each.name) == 0 || is_exempt(each.name)) continue;
      for (const auto& [number, member] : each.members) {
        for (auto it = std::sregex_iterator(member.begin(), member.end(), kWord); it != std::sregex_iterator(); ++it) {
          covered.insert(it->str());
        }
      }
    }
  }
  std::vector<std::string> found;
  static const std::regex kFlag(R"(^\s+(?:mutable )?(?:[\w:]+<)*bool\b[^(]*$)");
  for (const Struct& each : structs) {
    if (covered.count(each.name) == 0) continue;
    size_t flags = 0;
    for (const auto& [number, member] : each.members) {
      if (!std::regex_match(member, kFlag)) continue;
      ++flags;
      if (is_exempt(each.name)) continue;
      found.push_back(At(*each.file, number,
                         each.name +
                             " is a plan or part of one and has a flag: make it a value of an enum, or the plan "
                             "optional, or say in plans.cc why it is no choice"));
    }
    if (flags == 0 && is_exempt(each.name)) {
      found.push_back(At(*each.file, each.line, each.name + " has no flag, so plans.cc need not exempt it"));
    }
  }
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
