// SPDX-License-Identifier: Apache-2.0
// A subcommand of stoch declares its options on its CLI11 command and returns what runs once they are parsed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace stoch::cli {

// The most that an option takes that counts tokens: far more than any model or memory has.
inline constexpr int64_t kMostTokens = int64_t{1} << 40;

// What the process says to its caller.
enum ExitCode : int {
  kDone = 0,
  kCheckFailed = 1,
  kBadInput = 2,       // bad usage, files or values; a device that is not there
  kDeviceFailure = 3,  // a device, or stoch itself, failed
};

// Returns kDone or kCheckFailed; everything else is thrown.
using CommandBody = std::function<ExitCode()>;

CommandBody AddVerify(CLI::App& command);

// A message on one line, without a full stop; control characters as \xNN; the middle of one that quotes far too much is left out.
std::string OneLine(std::string text);

}  // namespace stoch::cli
