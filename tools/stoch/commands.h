// SPDX-License-Identifier: Apache-2.0
// The subcommands of stoch, and how one runs inside of another program. `verify` is app's.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/host/host.h"

namespace CLI {
class App;
}

namespace stoch::cli {

CommandBody AddGenerate(CLI::App& command);
CommandBody AddChat(CLI::App& command);
CommandBody AddBench(CLI::App& command);
CommandBody AddPerplexity(CLI::App& command);
CommandBody AddInspect(CLI::App& command);
CommandBody AddTokenize(CLI::App& command);
CommandBody AddServe(CLI::App& command);
CommandBody AddCalibrate(CLI::App& command);
CommandBody AddSweep(CLI::App& command);
CommandBody AddProfile(CLI::App& command);
CommandBody AddVectors(CLI::App& command);
CommandBody AddCost(CLI::App& command);
CommandBody AddWorker(CLI::App& command);
// These need the whole command line to describe it.
CommandBody AddCompletion(CLI::App& command, const CLI::App& root);
CommandBody AddHelp(CLI::App& command, const CLI::App& root);

struct CommandEntry {
  const char* name;
  CommandBody (*add)(CLI::App& command);
};

// Every command that needs neither a server nor the whole command line.
std::span<const CommandEntry> Commands();

// Runs `stoch ARGUMENTS` in this thread: what it prints, and how far it is, goes to the host.
// Returns: kDone or kCheckFailed.
// Errors:  InvalidInput for arguments that are not those of one of Commands(), and what the command or the host throws.
ExitCode RunInProcess(const std::vector<std::string>& arguments, const Host& host);

}  // namespace stoch::cli
