// SPDX-License-Identifier: Apache-2.0
#include "app/options/value_rules.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>

namespace stoch::cli {
namespace {

// Their values are texts, or settings of which there may be none. --config is settings of perplexity; where it is a file, who
// reads that refuses an empty name.
constexpr std::string_view kMayBeEmpty[] = {"--prompt", "--system", "--sc", "--config"};

bool MayBeEmpty(const CLI::Option& option) {
  const bool is_listed =
      std::find(std::begin(kMayBeEmpty), std::end(kMayBeEmpty), option.get_name()) != std::end(kMayBeEmpty);
  return is_listed || option.get_items_expected_min() == 0;
}

// Whether all of the word is a whole number; errno says whether 64 bits hold it, which CLI11 does not ask. It reads a negative one
// of an unsigned option as one beyond 2^63.
bool IsInteger(const std::string& word, bool is_signed) {
  char* end = nullptr;
  errno = 0;
  if (is_signed || word.starts_with('-')) {
    (void)std::strtoll(word.c_str(), &end, 0);
  } else {
    (void)std::strtoull(word.c_str(), &end, 0);
  }
  return end != word.c_str() && *end == '\0';
}

bool IsNumber(const std::string& word) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end != word.c_str() && *end == '\0' && std::isfinite(value);
}

CLI::Validator RuleOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // "INT", or "INT:INT in [1 - 64]"
  const bool is_signed = type.starts_with("INT");
  const bool is_whole = is_signed || type.starts_with("UINT");
  const bool is_number = is_whole || type.starts_with("FLOAT");
  const bool may_be_empty = MayBeEmpty(option) && !is_number;
  const size_t range = std::min(type.find(" in ["), type.size());
  const std::string expected = (is_whole ? "expected a whole number" : "expected a number") + type.substr(range);
  return {[=](std::string& word) -> std::string {
            if (word.empty()) return may_be_empty ? "" : "expected a value, got an empty one";
            if (!is_number || (is_whole ? IsInteger(word, is_signed) : IsNumber(word))) {
              return is_whole && errno == ERANGE ? "64 bits do not hold " + word : "";
            }
            return expected + ", got " + word;
          },
          ""};
}

// "--quiet=no"; CLI11 names the option by its type alone. Where nothing is given it has "true".
CLI::Validator FlagRule() {
  return {[](std::string& word) -> std::string {
            constexpr std::string_view kWords[] = {"true", "false", "1", "0", "on", "off", "yes", "no"};
            const bool is_known = std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
            return is_known ? "" : "expected no value, or true or false, got " + word;
          },
          ""};
}

// "-n", "-n4" or "--name=4" are of the name "-n" or "--name".
bool IsOf(const std::string& word, const std::string& name) {
  if (!word.starts_with(name)) return false;
  return word.size() == name.size() || name.size() == 2 || word[name.size()] == '=';
}

bool IsSameFile(const std::string& one, const std::string& other) {
  std::error_code none;  // of a word that is no path, or of no file
  return std::filesystem::is_regular_file(one, none) && std::filesystem::equivalent(one, other, none);
}

}  // namespace

void AddValueRules(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    // In front of the option's own checks, which are of a value.
    option->transform(option->get_items_expected_max() > 0 ? RuleOf(*option) : FlagRule());
  }
}

void ExcludeOthers(CLI::App& command, const std::string& option, const std::vector<std::string>& allowed) {
  CLI::Option* const alone = command.get_option(option);
  // When its values are read, which is after those of all others: options are declared after this, help would list all of
  // them, and of several that are given CLI11 names any.
  alone->each([&command, alone, allowed](const std::string&) {
    const CLI::Option* given = nullptr;
    for (CLI::Option* other : command.get_options()) {
      const bool is_allowed = std::any_of(allowed.begin(), allowed.end(),
                                          [other](const std::string& name) { return other->check_name(name); });
      if (other == alone || is_allowed) continue;
      alone->excludes(other);
      if (given == nullptr && other->count() > 0) given = other;
    }
    if (given != nullptr) throw CLI::ExcludesError(given->get_name(), alone->get_name());
  });
}

void KeepInputs(CLI::App& command, const std::string& output) {
  CLI::Option* const written = command.get_option(output);
  written->each([&command, written](const std::string& path) {  // the words of all options are known by then
    for (const CLI::Option* other : command.get_options()) {
      if (other == written) continue;
      for (const std::string& word : other->results()) {
        if (!IsSameFile(path, word)) continue;
        throw CLI::ValidationError(path + " would be overwritten, which " + other->get_name() + " reads");
      }
    }
  });
}

std::vector<std::string> WithEmptyValues(const std::vector<std::string>& words) {
  std::vector<std::string> result;
  bool options = true;
  for (const std::string& word : words) {
    options = options && word != "--";
    const bool is_empty = options && word.starts_with("--") && word.find('=') == word.size() - 1;
    result.push_back(is_empty ? word.substr(0, word.size() - 1) : word);
    if (is_empty) result.emplace_back();
  }
  return result;
}

std::string NamedAsTyped(const std::string& message, const CLI::App& command, const std::vector<std::string>& words) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string shown = option->get_name();
    if (!message.starts_with(shown + ":")) continue;
    std::vector<std::string> names = {shown};
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : names) {
      const auto is_it = [&](const std::string& word) { return IsOf(word, name); };
      if (std::any_of(words.begin(), words.end(), is_it)) return name + message.substr(shown.size());
    }
    if (option->count() > 0) return option->get_name(true) + message.substr(shown.size());
  }
  return message;
}

}  // namespace stoch::cli
