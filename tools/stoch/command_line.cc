// SPDX-License-Identifier: Apache-2.0
// The commands by name, and how one runs inside of another program.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/host/host.h"
#include "app/host/standard_error.h"
#include "app/options/usage_errors.h"
#include "app/options/value_rules.h"
#include "kernels/base/error.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

constexpr CommandEntry kCommands[] = {
    {"generate", AddGenerate}, {"chat", AddChat},       {"bench", AddBench},       {"perplexity", AddPerplexity},
    {"verify", AddVerify},     {"inspect", AddInspect}, {"tokenize", AddTokenize}, {"calibrate", AddCalibrate},
    {"profile", AddProfile},   {"cost", AddCost},       {"sweep", AddSweep},       {"vectors", AddVectors},
};

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }

ExitCode RunInProcess(const std::vector<std::string>& arguments, const Host& host) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  const std::span<const CommandEntry> commands = Commands();
  const auto found =
      std::find_if(commands.begin(), commands.end(), [&](const auto& entry) { return name == entry.name; });
  if (found == commands.end()) throw InvalidInput("command '" + name + "': it does not run in process");
  CLI::App root("stoch", "stoch");
  CLI::App& command = *root.add_subcommand(found->name);
  const CommandBody body = found->add(command);
  AddValueRules(command);
  const std::vector<std::string> words = WithEmptyValues(arguments);
  try {
    root.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 takes them
  } catch (const CLI::ParseError& error) {
    throw InvalidInput(OneLine(UsageError(error, root, words)));
  }
  const HostScope scope(&host);
  ForgetWarnings();
  return body();
}

}  // namespace stoch::cli
