// SPDX-License-Identifier: Apache-2.0
// The log of `stoch serve`: one line per event on standard error, written by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/serve/log.h"

namespace stoch::cli {

// Nobody waits for standard error: where its reader does not read, the oldest of some thousand lines are dropped.
class ServeLog {
 public:
  enum class Format : unsigned char { kText, kJson };
  // quiet: warnings and errors only. kJson: every line is a JSON object, other messages of the program too. Until it ends, other messages of the program (spdlog's default logger) wait for
  // standard error for a second at most.
  explicit ServeLog(bool quiet, Format format = Format::kText);
  // Gives what is queued a second to leave.
  ~ServeLog();

  serve::LogSink sink() const;
  // Lines that were dropped so far. Threads: safe.
  uint64_t dropped() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace stoch::cli
