// SPDX-License-Identifier: Apache-2.0
// Options that a command line leaves out, from the environment and from a file: both have them by the names of the one list
// that the commands declare, so that neither has a list of its own.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stoch::cli {

// "STOCH_MAX_QUEUE" for --max-queue; "" for what has no twin: positional arguments, --help, and --config.
std::string EnvironmentTwin(const CLI::Option& option);

// Declares --config FILE, where the command has no option of that name.
void AddConfigFile(CLI::App& command);

// Arguments for the options of `command` that were neither given nor excluded by what was, where the environment or the file
// has a value: a variable wins over the file, and what was given over both. Variables that are empty are none, nor is a
// STOCH_PORT of Kubernetes' service links (tcp://...).
//   file: YAML, a mapping of options by their names, with "-" or "_": scalars, lists for options that are repeated,
//         true and false for flags, and mappings of any depth for --sc.
// Requires: `command` has parsed the command line; whether that failed does not matter. Its options take the values, as a check:
//           what runs is parsed by another.
// Errors: InvalidInput naming the variable, or the file and the key: no such option, a value that the option refuses or of
//         another form, what ParseBlockYaml refuses.
std::vector<std::string> TwinArguments(CLI::App& command);

}  // namespace stoch::cli
