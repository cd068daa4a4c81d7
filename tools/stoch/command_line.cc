// SPDX-License-Identifier: Apache-2.0
// The commands by name, and how one runs inside of another program.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tools/stoch/command.h"
#include "tools/stoch/host/host.h"

namespace stoch::cli {
namespace {

constexpr CommandEntry kCommands[] = {
    {"generate", AddGenerate}, {"bench", AddBench},       {"perplexity", AddPerplexity}, {"verify", AddVerify},
    {"inspect", AddInspect},   {"tokenize", AddTokenize}, {"calibrate", AddCalibrate},   {"profile", AddProfile},
    {"cost", AddCost},         {"sweep", AddSweep},
};

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }

std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n')) text.replace(at, 1, "; ");
  return text;
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
  const HostScope scope(&host);
  return body();
}

}  // namespace stoch::cli
