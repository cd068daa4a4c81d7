// SPDX-License-Identifier: Apache-2.0
#include "app/host/standard_error.h"

#include <spdlog/details/os.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "app/host/descriptors.h"

namespace stoch::cli {
namespace {

// As spdlog's own sink of a terminal, which goes through stdio: that drops what a non-blocking pipe has no room for.
class StandardErrorSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    message.color_range_start = message.color_range_end = 0;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string text(line.data(), line.size());
    if (colours_ && message.color_range_end > message.color_range_start) {
      text.insert(message.color_range_end, "\x1b[m");
      text.insert(message.color_range_start, Colour(message.level));
    }
    PrintError(text);
  }
  void flush_() override {}

 private:
  static const char* Colour(spdlog::level::level_enum level) {
    if (level >= spdlog::level::err) return "\x1b[31m\x1b[1m";   // red
    if (level == spdlog::level::warn) return "\x1b[33m\x1b[1m";  // yellow
    return "\x1b[32m";                                           // green
  }

  const bool colours_ = isatty(STDERR_FILENO) != 0 && spdlog::details::os::is_color_terminal();
};

thread_local std::set<std::string> warned;

}  // namespace

void PrintError(std::string_view text) { (void)WriteAll(STDERR_FILENO, text); }

void WarnOnce(const std::string& text) {
  if (warned.insert(text).second) spdlog::warn(text);
}

void ForgetWarnings() { warned.clear(); }

void StartLog() {
  auto log = std::make_shared<spdlog::logger>("stoch", std::make_shared<StandardErrorSink>());
  log->set_pattern("%^%l%$: %v");
  spdlog::set_default_logger(std::move(log));
}

}  // namespace stoch::cli
