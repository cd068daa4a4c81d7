// SPDX-License-Identifier: Apache-2.0
// Every recorded result has its line of provenance, every experiment its columns.

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

std::vector<std::string> CheckLog(const std::vector<SourceFile>& files) {
  static const std::string header = "date\tcommit\tgpu\twhat\tbefore\tafter\tverdict\tresult";
  static const std::regex row(
      "[0-9]{4}-[0-9]{2}-[0-9]{2}\t(?:-|[0-9a-f]{7}(?:, [0-9a-f]{7})*)\t[^\t]+\t[^\t]+\t[^\t]*\t[^\t]*\t"
      "(?:kept|lost|no difference|not kept|left out|measured|planned|open)\t[^\t]+");
  std::vector<std::string> found;
  size_t logs = 0;
  for (const SourceFile& file : files) {
    if (file.path.rfind("bench/log/", 0) != 0 || file.path.find(".tsv") == std::string::npos) continue;
    ++logs;
    if (file.path == "bench/log/commits.tsv") continue;
    std::istringstream stream(file.text);
    size_t number = 0;
    for (std::string line; std::getline(stream, line);) {
      const std::string where = file.path + ":" + std::to_string(++number) + ": ";
      if (number == 1 && line != header) found.push_back(where + "expected the names of the columns");
      if (number > 1 && !std::regex_match(line, row)) found.push_back(where + "expected date to result");
    }
  }
  if (logs == 0) found.emplace_back("bench/log:0: has no experiments");
  return found;
}

}  // namespace stoch::test
