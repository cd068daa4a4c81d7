// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace stoch::cli {
namespace {

TEST(ProgressLine, ShowsShareAndTimeLeft) {
  EXPECT_EQ(ProgressLine("loading", 1, 4, 2.0), "loading [#######-----------------------]  25 %  2.0 s, 6.0 s left");
  EXPECT_EQ(ProgressLine("loading", 4, 4, 2.0), "loading [##############################] 100 %  2.0 s");
  EXPECT_EQ(ProgressLine("x", 1, 2, 125.0), "x [###############---------------]  50 %  2 min 05 s, 2 min 05 s left");
}

TEST(ProgressLine, SurvivesOddTotals) {
  EXPECT_EQ(ProgressLine("x", 0, 0, 0.0), "x [------------------------------]   0 %  0.0 s");
  EXPECT_EQ(ProgressLine("x", 9, 3, 1.0), "x [##############################] 100 %  1.0 s");
}

// Lines of the default log, without what is around them.
class LogLines {
 public:
  LogLines() : before_(spdlog::default_logger()) {
    auto log = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    log->set_pattern("%v");
    spdlog::set_default_logger(std::move(log));
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  ~LogLines() { spdlog::set_default_logger(before_); }

  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

TEST(ProgressLog, SaysShareAndTimeLeftOnceAPeriod) {
  if (isatty(STDERR_FILENO) != 0) GTEST_SKIP() << "standard error is a terminal";
  const LogLines lines;
  ProgressLog("loading", false).Update(1, 2);  // too soon
  ProgressLog("loading", true, std::chrono::milliseconds(0)).Update(1, 2);
  EXPECT_EQ(lines.text(), "");
  ProgressLog log("loading", false, std::chrono::milliseconds(20));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  log.Update(1, 2);
  EXPECT_EQ(lines.text().rfind("loading: 50 % of 2 B, 0.", 0), 0u) << lines.text();
  EXPECT_NE(lines.text().find(" s left\n"), std::string::npos) << lines.text();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  log.Update(2, 2);
  EXPECT_NE(lines.text().find("loading: 100 % of 2 B\n"), std::string::npos) << lines.text();
}

}  // namespace
}  // namespace stoch::cli
