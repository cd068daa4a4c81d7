// SPDX-License-Identifier: Apache-2.0
// What hosted continuous integration runs can be run anywhere.

#include <algorithm>
#include <regex>
#include <sstream>

#include "tests/policy/rules.h"

namespace stoch::test {

std::vector<std::string> CheckWorkflows(const std::vector<SourceFile>& files) {
  static const std::regex step(R"(\s*(?:- )?run: *(.*))");
  static const std::regex script(R"(((?:tools|bench|\.ci)/[\w./-]+)(?: [\w -]*)?)");
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    if (file.path.rfind(".github/workflows/", 0) != 0) continue;
    std::istringstream stream(file.text);
    size_t number = 0;
    for (std::string line; std::getline(stream, line);) {
      ++number;
      std::smatch command;
      if (!std::regex_match(line, command, step)) continue;
      const std::string text = command[1].str();
      std::smatch name;
      const bool runs_script =
          std::regex_match(text, name, script) &&
          std::any_of(files.begin(), files.end(), [&](const SourceFile& other) { return other.path == name[1].str(); });
      if (runs_script) continue;
      found.push_back(file.path + ":" + std::to_string(number) + ": \"" + text + "\" is no script of this repository");
    }
  }
  return found;
}

}  // namespace stoch::test
