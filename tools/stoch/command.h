// SPDX-License-Identifier: Apache-2.0
// The subcommands of stoch. Each declares its options on its CLI11 command and returns what runs once they are parsed.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace stoch::cli {

// What the process says to its caller.
enum ExitCode : int {
  kDone = 0,
  kCheckFailed = 1,
  kBadInput = 2,       // bad usage, files or values; a device that is not there
  kDeviceFailure = 3,  // a device, or stoch itself, failed
};

// Returns kDone or kCheckFailed; everything else is thrown.
using CommandBody = std::function<ExitCode()>;

CommandBody AddGenerate(CLI::App& command);
CommandBody AddBench(CLI::App& command);
CommandBody AddPerplexity(CLI::App& command);
CommandBody AddVerify(CLI::App& command);
CommandBody AddInspect(CLI::App& command);
CommandBody AddTokenize(CLI::App& command);
CommandBody AddServe(CLI::App& command);
CommandBody AddCalibrate(CLI::App& command);
CommandBody AddSweep(CLI::App& command);
CommandBody AddProfile(CLI::App& command);
CommandBody AddCost(CLI::App& command);
CommandBody AddWorker(CLI::App& command);
// These need the whole command line to describe it.
CommandBody AddCompletion(CLI::App& command, const CLI::App& root);
CommandBody AddHelp(CLI::App& command, const CLI::App& root);

}  // namespace stoch::cli
