// SPDX-License-Identifier: Apache-2.0
// Every recorded result has its line of provenance.

#include <regex>
#include <set>
#include <sstream>

#include "tests/policy/rules.h"

namespace stoch::test {

std::vector<std::string> CheckResults(const std::vector<SourceFile>& files) {
  const std::string folder = "bench/results/";
  const std::string table = folder + "README.md";
  static const std::regex row(R"(\| `.*\| (?:[0-9a-f]{7}(?:, [0-9a-f]{7})*|in the file) \|)");
  static const std::regex name(R"(`([\w./-]+\.json)`)");
  std::set<std::string> recorded;
  std::string text;
  for (const SourceFile& file : files) {
    if (file.path == table) text = file.text;
    if (file.path.rfind(folder, 0) == 0 && file.path != table) recorded.insert(file.path.substr(folder.size()));
  }
  std::vector<std::string> found;
  std::istringstream stream(text);
  size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.rfind("| `", 0) != 0) continue;
    const std::string where = table + ":" + std::to_string(number) + ": ";
    if (!std::regex_match(line, row)) found.push_back(where + "the last cell names no commit");
    const std::string first = line.substr(0, line.find('|', 1));
    for (auto it = std::sregex_iterator(first.begin(), first.end(), name); it != std::sregex_iterator(); ++it) {
      if (recorded.erase((*it)[1].str()) == 0) found.push_back(where + (*it)[1].str() + " is not there");
    }
  }
  for (const std::string& path : recorded) found.push_back(folder + path + ":1: has no row in " + table);
  return found;
}

}  // namespace stoch::test
