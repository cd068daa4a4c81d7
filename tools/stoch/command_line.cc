// SPDX-License-Identifier: Apache-2.0
// The commands by name, and how one runs inside of another program.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "app/host/host.h"
#include "app/host/standard_error.h"
#include "kernels/base/error.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

constexpr CommandEntry kCommands[] = {
    {"generate", AddGenerate}, {"chat", AddChat},       {"bench", AddBench},       {"perplexity", AddPerplexity},
    {"verify", AddVerify},     {"inspect", AddInspect}, {"tokenize", AddTokenize}, {"calibrate", AddCalibrate},
    {"profile", AddProfile},   {"cost", AddCost},       {"sweep", AddSweep},       {"vectors", AddVectors},
};

// Whether 64 bits hold a whole number. A double cannot tell the largest unsigned one from the one above it.
bool Fits(const std::string& word, bool is_unsigned) {
  const double value = std::strtod(word.c_str(), nullptr);
  if (!is_unsigned || value < 0x1p63) return value >= -0x1p63 && value < 0x1p63;
  errno = 0;
  (void)std::strtoull(word.c_str(), nullptr, 0);
  return errno != ERANGE;
}

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }

void CheckNumbers(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_whole = type.starts_with("INT") || type.starts_with("UINT");
    if (!is_whole && !type.starts_with("FLOAT")) continue;
    for (const std::string& word : option->results()) {
      const double value = std::strtod(word.c_str(), nullptr);
      if (is_whole && !Fits(word, type.starts_with("UINT")))
        throw InvalidInput(option->get_name() + " " + word + ": 64 bits do not hold it");
      if (!is_whole && !std::isfinite(value)) throw InvalidInput(option->get_name() + " " + word + ": is no number");
    }
  }
  for (const CLI::App* below : command.get_subcommands()) CheckNumbers(*below);
}

ExitCode RunInProcess(const std::vector<std::string>& arguments, const Host& host) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  const std::span<const CommandEntry> commands = Commands();
  const auto found =
      std::find_if(commands.begin(), commands.end(), [&](const auto& entry) { return name == entry.name; });
  if (found == commands.end()) throw InvalidInput("command '" + name + "': it does not run in process");
  CLI::App root("stoch", "stoch");
  const CommandBody body = found->add(*root.add_subcommand(found->name));
  std::vector<const char*> argv = {"stoch"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  try {
    root.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& error) {
    throw InvalidInput(OneLine(error.what()));
  }
  CheckNumbers(root);
  const HostScope scope(&host);
  ForgetWarnings();
  return body();
}

}  // namespace stoch::cli
