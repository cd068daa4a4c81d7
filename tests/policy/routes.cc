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
  constexpr std::array kFolders = {"sc", "mixed", "linear", "attention", "plain", "baseline"};
  static const std::regex kKernel(R"(\b__global__\b)");
  const SourceFile* const table = Find(files, "tests/policy/helper_kernels.tsv");
  if (table == nullptr) return {"tests/policy/helper_kernels.tsv:0: is not there"};
  std::vector<std::string> found;
  std::set<std::string> routes;
  std::set<std::string> named;
  for (const SourceFile& file : files) {
    if (!IsRouteHeader(file)) continue;
    const bool attention = StartsWith(file.path, "kernels/plan/attention/");
    for (const Enumerator& route : RoutesOf(file)) {
      routes.insert(route.name);
      AddNamed(files, attention ? "kernels/cuda/attention" : "kernels/cuda", route.comment, &named);
    }
  }
  std::set<std::string> kernels;  // files that define one
  for (const SourceFile& file : files) {
    const bool computes = std::any_of(kFolders.begin(), kFolders.end(), [&](const std::string& folder) {
      return StartsWith(file.path, "kernels/cuda/" + folder + "/");
    });
    if (!computes || !IsSource(file.path)) continue;
    ForLines(file, [&](size_t, const std::string& line) {
      if (std::regex_search(line.substr(0, line.find("//")), kKernel)) kernels.insert(file.path);
    });
  }
  std::set<std::string> helpers;
  for (const auto& [line, cells] : RowsOf(*table, 2, &found)) {
    helpers.insert(cells[0]);
    const std::vector<std::string> served = Split(cells[1], ' ');
    if (kernels.count(cells[0]) == 0) found.push_back(At(*table, line, cells[0] + " has no kernel"));
    if (named.count(cells[0]) != 0) found.push_back(At(*table, line, "a route names " + cells[0] + " itself"));
    if (std::none_of(served.begin(), served.end(),
                     [&](const std::string& route) { return routes.count(route) != 0; })) {
      found.push_back(At(*table, line, cells[0] + " serves no route that exists"));
    }
  }
  for (const std::string& kernel : kernels) {
    if (named.count(kernel) != 0 || helpers.count(kernel) != 0) continue;
    found.push_back(kernel + ":0: has a kernel that no route of kernels/plan/*/route.h names, nor " + table->path);
  }
  return found;
}

std::vector<std::string> CheckRouteNumbers(const std::vector<SourceFile>& files) {
  static const std::regex kNumber(R"([0-9] ?(?:ms|us|s|%)(?!\w))");
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
    if (record != nullptr) {
      ForLines(*record, [&](size_t, const std::string& row) {
        const size_t at = row.find(begins);
        if (at == std::string::npos) return;
        const std::string rest = row.substr(at + begins.size());
        has_number = has_number || std::regex_search(rest, kNumber);
      });
    }
    if (!has_number) found.push_back(At(*table, line, path + " has no row with a number after \"" + cells[2] + "\""));
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
