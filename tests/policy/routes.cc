// SPDX-License-Identifier: Apache-2.0
// Every kernel of a linear or of attention belongs to a route, and every route has a source, a plan and a recorded number.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "tests/policy/rules.h"
#include "tests/policy/text.h"

namespace stoch::test {
namespace {

// Routes that no record gives a time for (routes.tsv says why). Lowered when one is timed or goes; never raised.
constexpr size_t kMostWithoutNumber = 4;

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
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

const SourceFile* Find(const std::vector<SourceFile>& files, std::string_view path) {
  const auto file = std::find_if(files.begin(), files.end(), [&](const SourceFile& each) { return each.path == path; });
  return file == files.end() ? nullptr : &*file;
}

bool IsRouteHeader(const SourceFile& file) {
  return StartsWith(file.path, "kernels/plan/") && file.path.size() > 8 &&
         file.path.compare(file.path.size() - 8, 8, "/route.h") == 0;
}

// Adds the files that the comment of a route names: by their paths from `base`, the folder of its kernels, or from
// kernels/cuda; or by their names alone, next to the file named before.
void AddNamed(const std::vector<SourceFile>& files, const std::string& base, const std::string& comment,
              std::set<std::string>* named) {
  static const std::regex kName(R"((?:\.\./)?(?:\w+/)*[\w*]+\.(?:cuh?|cc))");
  const auto add = [&](const std::filesystem::path& path) {
    bool is_there = false;
    for (const SourceFile& file : files) {
      if (fnmatch(path.c_str(), file.path.c_str(), FNM_PATHNAME) != 0) continue;
      named->insert(file.path);
      is_there = true;
    }
    return is_there;
  };
  std::filesystem::path folder = base;
  for (auto it = std::sregex_iterator(comment.begin(), comment.end(), kName); it != std::sregex_iterator(); ++it) {
    const std::string name = it->str();
    const bool is_path = name.find('/') != std::string::npos;
    std::filesystem::path path = ((is_path ? std::filesystem::path(base) : folder) / name).lexically_normal();
    if (!add(path) && is_path && add("kernels/cuda/" + name)) path = "kernels/cuda/" + name;
    folder = path.parent_path();
  }
}

// The names of the kernels (__global__) that a text declares or defines.
std::vector<std::string> KernelsOf(const std::string& text) {
  static const std::regex kComment(R"(//[^\n]*)");
  static const std::regex kWord(R"([A-Za-z_]\w*)");
  const std::string code = std::regex_replace(text, kComment, "");
  std::vector<std::string> kernels;
  const std::string global = "__global__";
  for (size_t at = code.find(global); at != std::string::npos; at = code.find(global, at)) {
    at += global.size();
    std::smatch word;
    // The first word with a parenthesis is the name, unless it begins with __, as __launch_bounds__(...) does.
    while (std::regex_search(code.begin() + static_cast<std::ptrdiff_t>(at), code.end(), word, kWord)) {
      const size_t begin = at + static_cast<size_t>(word.position());
      const std::string name = word.str();
      at = code.find_first_not_of(" \n", begin + name.size());
      if (at == std::string::npos) return kernels;
      if (code[at] != '(') continue;
      if (!StartsWith(name, "__")) {
        kernels.push_back(name);
        break;
      }
      int depth = 0;
      do {
        depth += code[at] == '(' ? 1 : code[at] == ')' ? -1 : 0;
      } while (++at < code.size() && depth > 0);
    }
  }
  return kernels;
}

// Whether the kernels of a file compute linears, attention, or what only some families or a ring have.
bool ComputesOps(const std::string& path) {
  constexpr std::array kFolders = {"sc/",    "mixed/",    "linear/",   "attention/",
                                   "plain/", "baseline/", "families/", "fabric/ring/"};
  return std::any_of(kFolders.begin(), kFolders.end(),
                     [&](const char* folder) { return StartsWith(path, std::string("kernels/cuda/") + folder); });
}

// The names that a kernel may serve: the routes of kernels/plan, and the calls of a backend (struct ...Call).
std::set<std::string> ServableNames(const std::vector<SourceFile>& files) {
  static const std::regex kCall(R"(^struct (\w+Call) \{$)");
  std::set<std::string> names;
  for (const SourceFile& file : files) {
    if (StartsWith(file.path, "kernels/plan/")) {
      for (const Enumerator& route : RoutesOf(file)) names.insert(route.name);
    }
    if (!StartsWith(file.path, "kernels/") || StartsWith(file.path, "kernels/cuda/")) continue;
    ForLines(file, [&](size_t, const std::string& line) {
      std::smatch call;
      if (std::regex_match(line, call, kCall)) names.insert(call[1]);
    });
  }
  return names;
}

// The rows of a table of tests/policy below its header, split at tabs; a finding for each that has not `columns` parts.
struct TableRow {
  size_t line = 0;
  std::vector<std::string> cells;
};
std::vector<TableRow> RowsOf(const SourceFile& table, size_t columns, std::vector<std::string>* found) {
  std::vector<TableRow> rows;
  ForLines(table, [&](size_t number, const std::string& line) {
    if (number == 1) return;
    rows.push_back({number, Split(line, '\t')});
    if (rows.back().cells.size() == columns) return;
    found->push_back(At(table, number, "expected " + std::to_string(columns) + " columns"));
    rows.pop_back();
  });
  return rows;
}

}  // namespace

std::vector<std::string> CheckRoutes(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    if (!IsRouteHeader(file)) continue;
    const std::string folder = file.path.substr(0, file.path.rfind('/') + 1);
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

std::vector<std::string> CheckKernels(const std::vector<SourceFile>& files) {
  const SourceFile* const table = Find(files, "tests/policy/kernels.tsv");
  if (table == nullptr) return {"tests/policy/kernels.tsv:0: is not there"};
  std::vector<std::string> found;
  const std::set<std::string> servable = ServableNames(files);
  std::map<std::string, std::set<std::string>> kernels;  // file: kernels that it defines
  for (const SourceFile& file : files) {
    if (!ComputesOps(file.path) || !IsSource(file.path)) continue;
    for (const std::string& kernel : KernelsOf(file.text)) kernels[file.path].insert(kernel);
  }
  std::set<std::pair<std::string, std::string>> listed;  // file, kernel
  std::set<std::pair<std::string, std::string>> serves;  // file or "", name that one of its kernels serves
  for (const auto& [line, cells] : RowsOf(*table, 3, &found)) {
    const std::string& path = cells[0];
    const std::string& kernel = cells[1];
    const auto defines = kernels.find(path);
    if (defines == kernels.end() || defines->second.count(kernel) == 0) {
      found.push_back(At(*table, line, path + " has no kernel " + kernel));
    }
    if (!listed.emplace(path, kernel).second) found.push_back(At(*table, line, kernel + " has two rows"));
    for (const std::string& name : Split(cells[2], ' ')) {
      if (servable.count(name) == 0) found.push_back(At(*table, line, name + " is neither a route nor a call"));
      serves.emplace(path, name);
      serves.emplace("", name);
    }
  }
  for (const auto& [path, names] : kernels) {
    for (const std::string& kernel : names) {
      if (listed.count({path, kernel}) != 0) continue;
      found.push_back(path + ":0: " + table->path + " does not say which route or call " + kernel + " serves");
    }
  }
  for (const SourceFile& file : files) {
    if (!IsRouteHeader(file)) continue;
    const bool attention = StartsWith(file.path, "kernels/plan/attention/");
    for (const Enumerator& route : RoutesOf(file)) {
      if (StartsWith(route.comment, "cuBLAS")) continue;
      if (serves.count({"", route.name}) == 0) {
        found.push_back(At(file, route.line, "no kernel of " + table->path + " serves " + route.name));
      }
      std::set<std::string> named;
      AddNamed(files, attention ? "kernels/cuda/attention" : "kernels/cuda", route.comment, &named);
      for (const std::string& path : named) {
        if (kernels.count(path) == 0 || serves.count({path, route.name}) != 0) continue;
        found.push_back(At(file, route.line, "no kernel of " + path + " serves " + route.name));
      }
    }
  }
  return found;
}

std::vector<std::string> CheckRouteNumbers(const std::vector<SourceFile>& files) {
  static const std::regex kNumber(R"([0-9] ?(?:ms|us|s|%)(?!\w))");
  constexpr size_t kVerdict = 6;  // column of bench/log
  static const std::set<std::string> kGone = {"lost", "not kept", "left out", "planned"};
  const SourceFile* const table = Find(files, "tests/policy/routes.tsv");
  if (table == nullptr) return {"tests/policy/routes.tsv:0: is not there"};
  std::vector<std::string> found;
  std::map<std::string, std::string> records;  // of each route: the file that has its number
  for (const auto& [line, cells] : RowsOf(*table, 3, &found)) {
    const std::string& path = cells[1];
    for (const std::string& route : Split(cells[0], ' ')) {
      if (!records.emplace(route, path).second) found.push_back(At(*table, line, route + " has two rows"));
    }
    if (path == "-") continue;  // the third cell says why there is none
    if (path != "docs/performance.md" && !StartsWith(path, "bench/log/")) {
      found.push_back(At(*table, line, path + " is neither docs/performance.md nor of bench/log"));
    }
    const std::string& begins = cells[2];
    const SourceFile* const record = Find(files, path);
    bool has_number = false;
    bool is_of_tree = false;  // the code that the row timed was kept, or is what other code was compared with
    if (record != nullptr) {
      ForLines(*record, [&](size_t, const std::string& row) {
        const size_t at = row.find(begins);
        if (at == std::string::npos) return;
        const std::string rest = row.substr(at + begins.size());
        if (!std::regex_search(rest, kNumber)) return;
        has_number = true;
        const std::vector<std::string> experiment = Split(row, '\t');
        const bool is_log = StartsWith(path, "bench/log/");
        is_of_tree = is_of_tree || !is_log || (experiment.size() > kVerdict && !kGone.count(experiment[kVerdict]));
      });
    }
    if (!has_number) {
      found.push_back(At(*table, line, path + " has no row with a number after \"" + begins + "\""));
    } else if (!is_of_tree) {
      found.push_back(At(*table, line, "\"" + begins + "\" is an experiment whose code is not in the tree"));
    }
  }
  size_t missing = 0;
  for (const SourceFile& file : files) {
    if (!IsRouteHeader(file)) continue;
    for (const Enumerator& route : RoutesOf(file)) {
      const auto record = records.find(route.name);
      if (record == records.end()) {
        found.push_back(
            At(file, route.line, route.name + " has no number: time it and name the row in " + table->path));
      } else if (record->second == "-") {
        ++missing;
      }
    }
  }
  if (missing > kMostWithoutNumber) {
    found.push_back(table->path + ":0: " + std::to_string(missing) + " routes have no number, at most " +
                    std::to_string(kMostWithoutNumber) + " are allowed");
  }
  return found;
}

}  // namespace stoch::test
