// SPDX-License-Identifier: Apache-2.0
// What the command line tests share: the demo model and expectations on how a run ended.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/process.h"

namespace stoch::test {

inline std::string DemoModel() { return STOCH_SOURCE_DIR "/demo"; }

// "generate", the demo model, on one CPU thread, and more.
inline std::vector<std::string> WithDemo(std::string command, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {std::move(command), "--model", DemoModel(), "--device", "cpu",
                                        "--threads",        "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A text that a model can predict: so many sentences.
inline std::string BirdsText(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) text += "Once upon a time, a little dog saw " + std::to_string(i) + " birds. ";
  return text;
}

// The run was refused: exit code 2, nothing on standard output, and one line "error: ..." with `part` in it.
inline void ExpectRefused(const ProcessResult& result, const std::string& part) {
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("error: ", 0), 0u) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

// The names in "expected a command, one of A, B, ... (stoch --help ...)": the one list.
inline std::vector<std::string> EveryCommand() {
  const std::string line = RunStoch({}).err;
  const std::string before = "one of ";
  const size_t begin = line.find(before) + before.size();
  std::istringstream words(line.substr(begin, line.find(" (", begin) - begin));
  std::vector<std::string> names;
  for (std::string name; words >> name;) names.push_back(name.substr(0, name.find(',')));
  return names;
}

// The JSON object a successful run printed.
inline nlohmann::json ExpectJson(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << result.out;
  return json;
}

}  // namespace stoch::test
