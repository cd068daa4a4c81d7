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
// A string stays as it is if its bounds differ by less than kFew characters and it must have at most kBlock characters.
constexpr int64_t kFew = 4;
constexpr int64_t kBlock = 8;

struct Repeated {
  int64_t least;
  int64_t most;  // -1: any number
  size_t end;    // index after the closing brace

  bool is_long() const { return least > kBlock || (most >= 0 && most - least >= kFew); }
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
    const std::string first = Exactly(name, bounds.least);
    const std::string rest = bounds.most < 0 ? name + "{0, -1}" : AtMost(name, bounds.most - bounds.least);
    return first + (first.empty() || rest.empty() ? "" : " ") + rest;
  }
  const std::map<std::string, std::string>& rules() const { return rules_; }

 private:
  std::string AtMost(const std::string& name, int64_t count) {
    const std::string most = std::to_string(count);
    if (count == 0) return "";
    if (count < kFew) return name + "{0, " + most + "}";
    std::string rule = name + "_at_most_" + most;
    rules_[rule] = rule + "[max_chars=" + most + "] ::= ((" + std::string(kCharacter) + "*))\n";
    return rule;
  }

  std::string Exactly(const std::string& name, int64_t count) {
    const std::string left = std::to_string(count <= kBlock ? count : count % kBlock);
    std::string characters = left == "0" ? "" : name + "{" + left + ", " + left + "}";
    if (count <= kBlock) return characters;
    return Blocks(name, kBlock, count / kBlock) + (characters.empty() ? "" : " ") + characters;
  }

  // `count` blocks of `characters` each: a rule for a block of 8 characters, one for 8 such blocks, and so on.
  std::string Blocks(const std::string& name, int64_t characters, int64_t count) {
    const auto rule_of = [&name](int64_t some) { return name + "_exactly_" + std::to_string(some); };
    const std::string rule = rule_of(characters);
    const std::string body = characters == kBlock ? std::string(kCharacter) : rule_of(characters / kBlock);
    rules_[rule] = rule + " ::= ((" + Times(body, kBlock) + "))\n";
    if (count < kBlock) return Times(rule, count);
    const std::string left = Times(rule, count % kBlock);
    return Blocks(name, characters * kBlock, count / kBlock) + (left.empty() ? "" : " ") + left;
  }

  static std::string Times(const std::string& what, int64_t count) {
    std::string result;
    for (int64_t i = 0; i < count; ++i) result += (i > 0 ? " " : "") + what;
    return result;
  }

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
      if (bounds && bounds->is_long() && characters.contains(name)) {
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
