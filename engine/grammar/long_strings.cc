// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/long_strings.h"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

namespace stoch {
namespace {

// One character of a string with bounds, as xgrammar writes it.
constexpr std::string_view kCharacter = R"([^\"\\\r\n])";
// Strings with fewer characters to choose of are left as they are.
constexpr int64_t kFew = 4;

struct Repeated {
  int64_t least;
  int64_t most;
  size_t end;  // behind the brace
};

bool IsOfName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.'; }

// "{3, 40}" at `at`.
std::optional<Repeated> BoundsAt(std::string_view line, size_t at) {
  Repeated found{};
  const char* const end = line.data() + line.size();
  if (at >= line.size() || line[at] != '{') return std::nullopt;
  const auto [comma, bad] = std::from_chars(line.data() + at + 1, end, found.least);
  if (bad != std::errc() || end - comma < 2 || comma[0] != ',' || comma[1] != ' ') return std::nullopt;
  const auto [brace, bad_too] = std::from_chars(comma + 2, end, found.most);
  if (bad_too != std::errc() || brace == end || *brace != '}') return std::nullopt;
  found.end = static_cast<size_t>(brace + 1 - line.data());
  return found;
}

// Behind the literal, "..." or [...], that begins at `at`.
size_t BehindLiteral(std::string_view line, size_t at) {
  const char last = line[at] == '"' ? '"' : ']';
  for (++at; at < line.size() && line[at] != last; ++at) at += line[at] == '\\' ? 1 : 0;
  return at + 1;
}

// Rules that are added, each once.
class Counted {
 public:
  // Characters of the rule `name`, as many as that.
  std::string Of(const std::string& name, const Repeated& bounds) {
    std::string rule = name + "_at_most_" + std::to_string(bounds.most - bounds.least);
    rules_[rule] = rule + "[max_chars=" + std::to_string(bounds.most - bounds.least) + "] ::= ((" +
                   std::string(kCharacter) + "*))\n";
    if (bounds.least == 0) return rule;
    const std::string least = std::to_string(bounds.least);
    return name + "{" + least + ", " + least + "} " + rule;
  }
  const std::map<std::string, std::string>& rules() const { return rules_; }

 private:
  std::map<std::string, std::string> rules_;
};

std::string Rewritten(std::string_view line, const std::set<std::string>& characters, Counted& counted) {
  std::string result;
  for (size_t at = 0; at < line.size();) {
    size_t end = at + 1;
    if (line[at] == '"' || line[at] == '[') {
      end = BehindLiteral(line, at);
    } else if (IsOfName(line[at])) {
      while (end < line.size() && IsOfName(line[end])) ++end;
      const std::string name(line.substr(at, end - at));
      const std::optional<Repeated> bounds = BoundsAt(line, end);
      if (bounds && bounds->most - bounds->least >= kFew && characters.contains(name)) {
        result += counted.Of(name, *bounds);
        at = bounds->end;
        continue;
      }
    }
    result += line.substr(at, end - at);
    at = end;
  }
  return result;
}

}  // namespace

std::string WithCountedStrings(const std::string& grammar) {
  const std::string is_character = " ::= ((" + std::string(kCharacter) + "))";
  std::set<std::string> characters;
  std::string line;
  for (std::istringstream lines(grammar); std::getline(lines, line);) {
    if (line.ends_with(is_character)) characters.insert(line.substr(0, line.size() - is_character.size()));
  }
  Counted counted;
  std::string result;
  for (std::istringstream lines(grammar); std::getline(lines, line);) {
    result += Rewritten(line, characters, counted) + "\n";
  }
  if (counted.rules().empty()) return "";
  for (const auto& [name, rule] : counted.rules()) result += rule;
  return result;
}

}  // namespace stoch
