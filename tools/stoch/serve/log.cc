// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/log.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace stoch::cli {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kQueuedLines = 4096;
constexpr milliseconds kPatience{1000};
constexpr milliseconds kLook{50};  // how often the writer looks whether it is to end

// Standard error, without ever blocking for good: poll says where so much as PIPE_BUF bytes can be written at once.
class PoliteSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // patience: how long a line waits; none: until Hurry.
  explicit PoliteSink(std::optional<milliseconds> patience) : patience_(patience) {}

  // From now on nothing waits.
  void Hurry() { hurry_ = true; }
  uint64_t dropped() const { return dropped_; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string_view rest(line.data(), line.size());
    while (!rest.empty()) {
      if (!WaitForRoom()) {
        ++dropped_;
        return;
      }
      const ssize_t written = write(STDERR_FILENO, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
      if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (written < 0) return;
      rest.remove_prefix(static_cast<size_t>(written));
    }
  }
  void flush_() override {}

 private:
  bool WaitForRoom() const {
    const Clock::time_point start = Clock::now();
    for (;;) {
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      const bool hurry = hurry_;
      if (poll(&room, 1, hurry ? 0 : static_cast<int>(kLook.count())) > 0) return true;  // or write tells what is wrong
      if (hurry || (patience_ && Clock::now() - start > *patience_)) return false;
    }
  }

  const std::optional<milliseconds> patience_;
  std::atomic<bool> hurry_ = false;
  std::atomic<uint64_t> dropped_ = 0;
};

constexpr const char* kTime = "%Y-%m-%dT%H:%M:%S.%e%z";

// A message as one JSON object.
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const auto level = message.level >= spdlog::level::err    ? serve::LogLevel::kError
                       : message.level == spdlog::level::warn ? serve::LogLevel::kWarning
                                                              : serve::LogLevel::kInfo;
    const std::string text(message.payload.data(), message.payload.size());
    const std::string json =
        serve::FormatJsonLogLine(fmt::to_string(time), {level, "message", {{"message", text}}}) + "\n";
    line.append(json.data(), json.data() + json.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }

 private:
  spdlog::pattern_formatter time_{kTime, spdlog::pattern_time_type::local, ""};
};

// The time now, as lines of text have it.
std::string TimeNow() {
  spdlog::memory_buf_t time;
  const spdlog::details::log_msg message("", spdlog::level::info, "");
  spdlog::pattern_formatter(kTime, spdlog::pattern_time_type::local, "").format(message, time);
  return fmt::to_string(time);
}

}  // namespace

struct ServeLog::State {
  explicit State(Format wanted) : format(wanted) {}
  const Format format;
  std::shared_ptr<PoliteSink> sink = std::make_shared<PoliteSink>(std::nullopt);
  std::shared_ptr<spdlog::details::thread_pool> pool = std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1);
  std::shared_ptr<spdlog::async_logger> log =
      std::make_shared<spdlog::async_logger>("serve", sink, pool, spdlog::async_overflow_policy::overrun_oldest);
};

ServeLog::ServeLog(bool quiet, Format format) : state_(std::make_shared<State>(format)) {
  const bool json = format == Format::kJson;
  state_->log->set_pattern(json ? "%v" : std::string(kTime) + " %l %v");
  if (quiet) state_->log->set_level(spdlog::level::warn);
  auto others = std::make_shared<spdlog::logger>("stoch", std::make_shared<PoliteSink>(kPatience));
  others->set_pattern("%l: %v");
  if (json) others->set_formatter(std::make_unique<JsonFormatter>());
  others->set_level(spdlog::default_logger()->level());
  spdlog::set_default_logger(std::move(others));
}

ServeLog::~ServeLog() {
  const Clock::time_point start = Clock::now();
  while (state_->pool->queue_size() > 0 && Clock::now() - start < kPatience) std::this_thread::sleep_for(kLook);
  state_->sink->Hurry();
  state_->pool.reset();  // waits for its thread
}

serve::LogSink ServeLog::sink() const {
  return [log = state_->log, json = state_->format == Format::kJson](const serve::LogLine& line) {
    constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
    log->log(kLevels[static_cast<size_t>(line.level)], "{}",
             json ? serve::FormatJsonLogLine(TimeNow(), line) : serve::FormatLogLine(line));
  };
}

uint64_t ServeLog::dropped() const { return state_->pool->overrun_counter() + state_->sink->dropped(); }

}  // namespace stoch::cli
