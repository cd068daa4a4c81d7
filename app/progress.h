// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error, with an estimate of the time left.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "app/host/host.h"

namespace stoch::cli {

// "loading   [#####-----]  50 %  1.2 s, 1.2 s left"; without a total, or before the first step, no estimate.
std::string ProgressLine(const std::string& label, int64_t done, int64_t total, double elapsed_s);

// Redrawn at most ten times a second; nothing is drawn where standard error is no terminal, or `quiet`. A
// host of this thread (host/host.h) is told of every update instead.
class ProgressBar {
 public:
  ProgressBar(std::string label, bool quiet);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { Clear(); }

  void Update(int64_t done, int64_t total);
  // Removes the bar, so that something else can be printed.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  const Host* host_ = CurrentHost();
  bool shown_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_ = start_;
};

// "loading: 50 % of 2.4 GB, 1.2 s left" in the log now and then, where no bar can be drawn: launchers of ranks take standard error as a pipe.
class ProgressLog {
 public:
  // Logs nothing where standard error is a terminal, or `quiet`; else one line a period, the first after one.
  ProgressLog(std::string label, bool quiet, std::chrono::milliseconds period = std::chrono::seconds(5));

  void Update(int64_t done, int64_t total);  // bytes

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool shown_;
  std::chrono::milliseconds period_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + period_;
};

}  // namespace stoch::cli
