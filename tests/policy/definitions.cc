// SPDX-License-Identifier: Apache-2.0
// A call is an arrow too: what a header declares is defined in its own part of the tree, or who calls it needs another part.
#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

std::string_view TopOf(std::string_view path) { return path.substr(0, path.find('/')); }

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// The text without what stands in unnamed namespaces, which no other file can call; line breaks stay.
std::string WithoutUnnamed(const std::string& text) {
  std::istringstream stream(text);
  std::string out;
  bool unnamed = false;
  for (std::string line; std::getline(stream, line);) {
    if (line == "namespace {") unnamed = true;
    if (!unnamed) out += line;
    out += '\n';
    if (line == "}  // namespace") unnamed = false;
  }
  return out;
}

// The functions and classes that a header declares at the left margin, where clang-format puts what no class holds.
std::set<std::string> DeclaredIn(const SourceFile& header) {
  static const std::regex kFunction(R"re(^(?!using |typedef |static_assert|friend |return |namespace |template <>))re"
                                    R"re([A-Za-z_\[][^=({};]*[ *&](\w+)\([^{]*$)re");
  static const std::regex kClass(R"(^(?:class|struct) (?:\[\[\w+\]\] )?(\w+)[^;]*$)");
  std::set<std::string> names;
  std::istringstream stream(header.text);
  for (std::string line; std::getline(stream, line);) {
    line = line.substr(0, line.find("//"));
    std::smatch match;
    if (std::regex_match(line, match, kFunction) || std::regex_match(line, match, kClass)) names.insert(match[1]);
  }
  return names;
}

}  // namespace

std::vector<std::string> CheckDefinitions(const std::vector<SourceFile>& files) {
  std::map<std::string, std::set<std::string>> declared;  // by path
  for (const SourceFile& file : files) {
    if (EndsWith(file.path, ".h") || EndsWith(file.path, ".cuh")) declared[file.path] = DeclaredIn(file);
  }
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    const std::string_view top = TopOf(file.path);
    if (!IsSource(file.path) || declared.count(file.path) != 0 || top == "tests" || top == "bench") continue;
    const std::vector<std::string> included = QuotedIncludes(file);
    std::istringstream stream(file.text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    for (const FunctionSize& function : FunctionsOf({file.path, WithoutUnnamed(file.text)})) {
      if (lines[function.line - 1].empty() || lines[function.line - 1][0] == ' ') continue;  // of a class in this file
      const std::string name = function.name.substr(0, function.name.find("::"));
      std::string where;
      for (const std::string& header : included) {
        if (declared[header].count(name) == 0) continue;
        where = header;
        if (TopOf(header) == top) break;
      }
      if (where.empty() || TopOf(where) == top) continue;
      found.push_back(file.path + ":" + std::to_string(function.line) + ": defines " + function.name + ", which " +
                      where + " declares: who calls it there needs " + std::string(top));
    }
  }
  return found;
}

}  // namespace stoch::test
