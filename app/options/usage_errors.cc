// SPDX-License-Identifier: Apache-2.0
#include "app/options/usage_errors.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/options/value_rules.h"
#include "loader/near_name.h"

namespace stoch::cli {
namespace {

// "stoch generate"; "stoch" where no command was parsed.
std::string PathOf(const CLI::App& command) {
  const CLI::App* root = command.get_parent();
  return root == nullptr ? command.get_name() : root->get_name() + " " + command.get_name();
}

bool IsOption(const std::string& word) { return word.size() > 1 && word.starts_with('-'); }

std::string UnknownOption(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  }
  return fmt::format("{}: {} has no such option{}", name, PathOf(command), DidYouMean(name, known));
}

std::string UnknownCommand(const CLI::App& root, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  return fmt::format("{}: {} has no such command{}", word, root.get_name(), DidYouMean(word, known));
}

// Names the first word that no option takes, the unknown option before others; "" where all were taken.
std::string Unexpected(const CLI::App& command, const std::vector<std::string>& rest) {
  if (rest.empty()) return "";
  const auto option = std::find_if(rest.begin(), rest.end(), IsOption);
  const bool is_root = command.get_parent() == nullptr;
  if (is_root && option != rest.begin()) return UnknownCommand(command, rest.front());
  if (option != rest.end()) return UnknownOption(command, *option);
  return fmt::format("'{}': {} takes no such word (a text of several words is put in quotes)", rest.front(),
                     PathOf(command));
}

// The flag that WithEmptyValues has put an empty word after; "" where there is none.
std::string EmptyFlag(const CLI::App& command, const std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size() && words[i] != "--"; ++i) {
    if (!words[i + 1].empty()) continue;
    const CLI::Option* option = IsOption(words[i]) ? command.get_option_no_throw(words[i]) : nullptr;
    if (option != nullptr && option->get_items_expected_max() == 0) return words[i];
  }
  return "";
}

// The option that got more values than it takes; nullptr where there is none.
const CLI::Option* Overfull(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const bool takes_one = option->get_items_expected_max() == 1;
    if (takes_one && option->count() > 1 && option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw) {
      return option;
    }
  }
  return nullptr;
}

}  // namespace

std::string UsageError(const CLI::ParseError& error, const CLI::App& root, const std::vector<std::string>& words) {
  const std::vector<CLI::App*> parsed = root.get_subcommands();
  const CLI::App& command = parsed.empty() ? root : *parsed.front();
  if (const auto before = root.remaining(); !parsed.empty() && !before.empty()) {
    return fmt::format("{}: the command comes first, as in {} {}", before.front(), PathOf(command), before.front());
  }
  if (const std::string flag = EmptyFlag(command, words); !flag.empty()) {
    return flag + ": expected no value, got an empty one";
  }
  const std::vector<std::string> rest = command.remaining();
  const bool has_unknown = std::any_of(rest.begin(), rest.end(), IsOption);
  const bool is_extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (has_unknown || is_extras) {
    if (std::string unexpected = Unexpected(command, rest); !unexpected.empty()) return unexpected;
  }
  std::string message = error.what();
  const CLI::Option* overfull = Overfull(command);
  if (overfull != nullptr && message.starts_with(overfull->get_name() + ":")) {
    message = fmt::format("{}: expected one value, got '{}'", overfull->get_name(),
                          fmt::join(overfull->results(), "' and '"));
  }
  const size_t lacking = message.find(": 1 required ");
  if (lacking != std::string::npos && dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    message = message.substr(0, lacking) + ": expected a value, got none";
  }
  return NamedAsTyped(message, command, words);
}

}  // namespace stoch::cli
