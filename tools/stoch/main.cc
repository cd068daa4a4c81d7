// SPDX-License-Identifier: Apache-2.0
// stoch: language models in stochastic computing, on the command line.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "app/host/descriptors.h"
#include "app/host/standard_error.h"
#include "app/interrupt.h"
#include "app/options/twins.h"
#include "app/options/usage_errors.h"
#include "app/options/value_rules.h"
#include "app/output.h"
#include "app/version.h"
#include "kernels/base/error.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

// What shells expect of a process that SIGINT ended.
constexpr int kInterrupted = 130;

// Not those that describe the command line, nor the worker, which has what its server says.
bool HasTwins(const CLI::App& command) {
  const std::string& name = command.get_name();
  return name != "worker" && name != "completion" && name != "help";
}

struct Declared {
  CLI::App* command;
  CommandBody body;
};

std::vector<Declared> Declare(CLI::App& root) {
  std::vector<CommandEntry> commands(Commands().begin(), Commands().end());
  commands.push_back({"serve", AddServe});
  commands.push_back({"worker", AddWorker});
  std::vector<Declared> declared;
  for (const auto& [name, add] : commands) {
    CLI::App* command = root.add_subcommand(name);
    declared.push_back({command, add(*command)});
    if (HasTwins(*command)) AddConfigFile(*command);
    AddValueRules(*command);
  }
  CLI::App* completion = root.add_subcommand("completion");
  declared.push_back({completion, AddCompletion(*completion, root)});
  CLI::App* help = root.add_subcommand("help");
  declared.push_back({help, AddHelp(*help, root)});
  return declared;
}

// Errors: CLI::Error.
void Parse(CLI::App& root, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  root.parse(std::move(words));
}

// The command line with what it leaves to the environment and to --config. Which options it has is told by a parser of its
// own, whose errors the real one repeats.
std::vector<std::string> CompleteArguments(const std::vector<std::string>& given) {
  std::vector<std::string> arguments = given;
  CLI::App root("", "stoch");
  const std::vector<Declared> declared = Declare(root);
  try {
    Parse(root, given);
  } catch (const CLI::CallForHelp&) {
    return arguments;
  } catch (const CLI::Error&) {
    // Whatever is required may come from the file.
  }
  for (const Declared& entry : declared) {
    if (!entry.command->parsed() || !HasTwins(*entry.command)) continue;
    const std::vector<std::string> more = TwinArguments(*entry.command);
    const auto name = std::find(arguments.begin(), arguments.end(), entry.command->get_name());
    if (name != arguments.end()) arguments.insert(name + 1, more.begin(), more.end());
  }
  return WithEmptyValues(arguments);
}

int RunCommandLine(int argc, char** argv) {
  CLI::App root("Language models in stochastic computing: the same bits on every machine.", "stoch");
  root.require_subcommand(0, 1);
  root.footer(
      "Examples:\n"
      "  stoch chat\n"
      "  stoch generate --model demo --prompt 'Once upon a time'\n"
      "  stoch bench --model random:llama-3.2-1b\n"
      "  stoch COMMAND --help\n"
      "  stoch help sc\n"
      "Options that are not given are taken from the environment (STOCH_MAX_QUEUE is --max-queue), then from --config "
      "FILE, a YAML file of options by their names.\n"
      "Exit codes: 0 done, 1 a check failed, 2 bad input or usage, 3 device failure, 130 interrupted. "
      "Output that nobody reads any more ends a command with 0.");
  bool version = false;
  root.add_flag("--version", version, "Print version and build facts")
      ->trigger_on_parse()
      ->each([](const std::string&) {
        PrintLine(VersionText());
        throw CLI::Success();
      });
  const std::vector<Declared> declared = Declare(root);
  const std::vector<std::string> arguments = CompleteArguments(WithEmptyValues({argv + 1, argv + argc}));
  try {
    Parse(root, arguments);
  } catch (const CLI::CallForHelp&) {
    for (const Declared& entry : declared) {
      if (entry.command->parsed()) {
        Print(entry.command->help("stoch"));
        return kDone;
      }
    }
    Print(root.help());
    return kDone;
  } catch (const CLI::Success&) {
    return kDone;
  } catch (const CLI::ParseError& error) {
    spdlog::error("{} (stoch --help shows the usage)", OneLine(UsageError(error, root, arguments)));
    return kBadInput;
  }
  for (const Declared& entry : declared) {
    if (entry.command->parsed()) return entry.body();
  }
  std::vector<std::string> names;
  for (const Declared& entry : declared) names.push_back(entry.command->get_name());
  throw InvalidInput(
      fmt::format("expected a command, one of {} (stoch --help shows the usage)", fmt::join(names, ", ")));
}

int Main(int argc, char** argv) {
  HoldStandardDescriptors();
  StartLog();
  WatchForInterrupt();
  try {
    return RunCommandLine(argc, argv);
  } catch (const InvalidInput& error) {
    spdlog::error("{}", OneLine(error.what()));
    return kBadInput;
  } catch (const OutOfMemory& error) {
    spdlog::error("{} (a shorter --context, fewer sequences or a smaller --pass-rows take less)",
                  OneLine(error.what()));
    return kDeviceFailure;
  } catch (const DeviceError& error) {
    spdlog::error("{}", OneLine(error.what()));
    return kDeviceFailure;
  } catch (const Interrupted&) {
    spdlog::error("interrupted");
    return kInterrupted;
  } catch (const ReaderGone&) {
    return kDone;  // `stoch ... | head`: who went away has what was asked, and needs no message
  } catch (const std::bad_alloc&) {
    spdlog::error("out of host memory");
    return kDeviceFailure;
  } catch (const std::exception& error) {
    spdlog::error("internal error: {}", OneLine(error.what()));
    return kDeviceFailure;
  }
}

}  // namespace
}  // namespace stoch::cli

int main(int argc, char** argv) { return stoch::cli::Main(argc, argv); }
