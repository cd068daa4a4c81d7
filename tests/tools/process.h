// SPDX-License-Identifier: Apache-2.0
// Runs the stoch binary as a user would.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stoch::test {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal where one ended it
  std::string out;
  std::string err;
  long max_resident_kb = 0;
};

struct ProcessOptions {
  std::string input;                     // standard input
  std::string output;                    // standard output goes to this file instead
  std::string interrupt_after_out;       // SIGINT once standard output holds this text
  std::function<bool()> kill_when = {};  // SIGKILL once it says so
};

// The path of the binary under test.
std::string StochBinary();

// Runs the binary under test with these arguments and waits for it.
// Errors: std::runtime_error if it cannot be started or does not end in two minutes.
ProcessResult RunStoch(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

}  // namespace stoch::test
