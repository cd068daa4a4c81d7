// SPDX-License-Identifier: Apache-2.0
#include "app/options/twins.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "kernels/base/error.h"
#include "loader/file.h"
#include "loader/near_name.h"
#include "loader/research/block_yaml.h"

namespace stoch::cli {
namespace {

constexpr const char* kConfig = "config";
constexpr const char* kConfigHelp = "YAML file of options by their names, for those that are not given";
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

std::string NameOf(const CLI::Option& option) { return option.get_lnames().empty() ? "" : option.get_lnames()[0]; }

bool HasTwin(const CLI::Option& option) {
  const std::string name = NameOf(option);
  return !name.empty() && name != "help" && name != kConfig;
}

bool IsFlag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// Errors: InvalidInput.
bool FlagOf(const std::string& text, const std::string& where) {
  for (const char* word : {"true", "1", "on", "yes"}) {
    if (text == word) return true;
  }
  for (const char* word : {"false", "0", "off", "no"}) {
    if (text == word) return false;
  }
  throw InvalidInput(fmt::format("{} = {}: expected true or false", where, text));
}

// Adds `values` of `option` to the arguments, once the option takes them: who reads its error learns where the value is from.
// Errors: InvalidInput that begins with `where`.
void Append(CLI::Option* option, const std::vector<std::string>& values, const std::string& where,
            std::vector<std::string>* arguments) {
  const std::string flag = "--" + NameOf(*option);
  try {
    for (const std::string& value : values) {
      if (!IsFlag(*option)) {
        arguments->push_back(flag + "=" + value);
        option->add_result(value);
      } else if (FlagOf(value, where)) {
        arguments->push_back(flag);
      }
    }
    if (option->count() > 0) option->run_callback();
  } catch (const CLI::Error& error) {
    throw InvalidInput(fmt::format("{}: {}", where, error.what()));
  }
}

std::string ScalarText(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  // The reader of YAML has every number as a float.
  if (value.is_number_float() && value.get<double>() == std::trunc(value.get<double>()) &&
      std::abs(value.get<double>()) < 0x1p53) {
    return fmt::format("{:.0f}", value.get<double>());
  }
  if (value.is_number() || value.is_boolean()) return value.dump();
  throw InvalidInput(where + ": expected a number, a text, true or false");
}

// {preset: halved, down_proj: {stoc_len: 64}} as --sc has it.
void AppendSettings(const nlohmann::json& value, const std::string& place, const std::string& where,
                    std::vector<std::string>* settings) {
  for (const auto& [key, item] : value.items()) {
    const std::string name = place.empty() ? key : place + "." + key;
    if (item.is_object()) {
      AppendSettings(item, name, where, settings);
      continue;
    }
    const std::string text = item.is_boolean() ? (item.get<bool>() ? "1" : "0") : ScalarText(item, where + ": " + name);
    settings->push_back(name + "=" + text);
  }
}

std::vector<std::string> TextsOf(const CLI::Option& option, const nlohmann::json& value, const std::string& where) {
  if (value.is_null()) return {};
  if (value.is_object() && NameOf(option) == "sc") {
    std::vector<std::string> settings;
    AppendSettings(value, "", where, &settings);
    // A mapping has no order, and later settings override earlier ones: a preset is everything at once, and what names an
    // operator or layers comes after what does not.
    const auto place = [](const std::string& setting) {
      return setting.starts_with("preset=")
                 ? -1
                 : std::count(setting.begin(), setting.begin() + static_cast<std::ptrdiff_t>(setting.find('=')), '.');
    };
    std::stable_sort(settings.begin(), settings.end(),
                     [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
    return {fmt::format("{}", fmt::join(settings, ","))};
  }
  if (!value.is_array()) return {ScalarText(value, where)};
  if (option.get_items_expected_max() < 2) throw InvalidInput(where + ": the option takes one value");
  std::vector<std::string> texts;
  for (const nlohmann::json& item : value) texts.push_back(ScalarText(item, where));
  return texts;
}

struct FileValues {
  std::string name;
  std::map<std::string, nlohmann::json> by_option;  // with "-"
};

std::vector<std::string> TwinNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (HasTwin(*option)) names.push_back(NameOf(*option));
  }
  return names;
}

// Errors: InvalidInput.
FileValues ReadConfig(const CLI::App& command, const std::string& path) {
  FileValues values{path, {}};
  if (path.empty()) return values;
  const nlohmann::json document = ParseBlockYaml(ReadSmallFile(path, kMaxConfigBytes), path);
  if (document.is_null()) return values;
  if (!document.is_object()) throw InvalidInput(path + ": expected a mapping of options");
  for (const auto& [key, value] : document.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = command.get_option_no_throw("--" + name);
    if (option == nullptr || !HasTwin(*option)) {
      throw InvalidInput(fmt::format("{}: {}: stoch {} has no such option (stoch {} --help lists them){}", path, key,
                                     command.get_name(), command.get_name(), DidYouMean(name, TwinNames(command))));
    }
    if (!values.by_option.emplace(NameOf(*option), value).second) {
      throw InvalidInput(fmt::format("{}: {}: the option is given twice", path, key));
    }
  }
  return values;
}

// nullptr where it is empty, or of Kubernetes: next to a service called stoch every container has STOCH_PORT=tcp://ADDRESS:PORT.
const char* Variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return nullptr;
  const std::string_view text = value;
  const bool is_link = name == "STOCH_PORT" && (text.starts_with("tcp://") || text.starts_with("udp://"));
  return is_link ? nullptr : value;
}

// The file that --config or STOCH_CONFIG names; "" if neither does. perplexity has a --config that is something else.
std::string ConfigPath(const CLI::App& command) {
  const CLI::Option* option = command.get_option_no_throw("--config");
  if (option == nullptr || option->get_description() != kConfigHelp) return "";
  if (option->count() > 0) {
    if (option->results().back().empty()) throw InvalidInput("--config: expected a file, got an empty name");
    return option->results().back();
  }
  const char* const path = Variable("STOCH_CONFIG");
  return path == nullptr ? "" : path;
}

// Given, or kept out by what is: --prompt of a file, next to --file.
bool IsSettled(const CLI::Option& option, const std::set<const CLI::Option*>& given) {
  const auto is_given = [&](const CLI::Option* other) { return given.contains(other); };
  const auto& excluded = option.get_excludes();
  return is_given(&option) || std::any_of(excluded.begin(), excluded.end(), is_given);
}

}  // namespace

std::string EnvironmentTwin(const CLI::Option& option) {
  if (!HasTwin(option)) return "";
  std::string name = "STOCH_" + NameOf(option);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

void AddConfigFile(CLI::App& command) {
  if (command.get_option_no_throw("--config") != nullptr) return;
  command.add_option("--config", kConfigHelp)->type_name("TEXT");
}

std::vector<std::string> TwinArguments(CLI::App& command) {
  const FileValues file = ReadConfig(command, ConfigPath(command));
  std::set<const CLI::Option*> given;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) given.insert(option);
  }
  std::vector<std::string> arguments;
  for (CLI::Option* option : command.get_options()) {
    if (!HasTwin(*option) || IsSettled(*option, given)) continue;
    const std::string variable = EnvironmentTwin(*option);
    const char* const value = Variable(variable);
    // CLI11 reads the variables that an option declares by itself.
    if (value != nullptr && option->get_envname() == variable) continue;
    if (value != nullptr) {
      Append(option, {value}, variable, &arguments);
      continue;
    }
    const auto found = file.by_option.find(NameOf(*option));
    if (found == file.by_option.end()) continue;
    const std::string where = file.name + ": " + found->first;
    Append(option, TextsOf(*option, found->second, where), where, &arguments);
  }
  return arguments;
}

}  // namespace stoch::cli
