// SPDX-License-Identifier: Apache-2.0
// Standard error: summaries, progress and the log. It may be closed, full or unread; no result depends on it.
#pragma once

#include <string>
#include <string_view>

namespace stoch::cli {

// Writes to standard error. What cannot be written is lost without a word.
void PrintError(std::string_view text);

// A warning of the log that is told once in a command, however often a command comes past it. Threads: one at a time.
void WarnOnce(const std::string& text);
// From now on everything is told again: another command begins.
void ForgetWarnings();

// Everything but results goes to standard error, as "warning: ...": makes that the default log.
void StartLog();

}  // namespace stoch::cli
