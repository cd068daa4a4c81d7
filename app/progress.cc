// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "app/host/standard_error.h"
#include "engine/units.h"

namespace stoch::cli {
namespace {

std::string Seconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto minutes = static_cast<int64_t>(seconds / 60);
  return fmt::format("{} min {:02} s", minutes, static_cast<int64_t>(seconds) - 60 * minutes);
}

double ShareOf(int64_t done, int64_t total) {
  return total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
}

// ", 1.2 s left"; "" where nothing is known of it.
std::string TimeLeft(double share, double elapsed_s) {
  return share > 0 && share < 1 ? fmt::format(", {} left", Seconds(elapsed_s * (1 - share) / share)) : "";
}

}  // namespace

std::string ProgressLine(const std::string& label, int64_t done, int64_t total, double elapsed_s) {
  constexpr int64_t kWidth = 30;
  const double share = ShareOf(done, total);
  const auto filled = static_cast<size_t>(share * kWidth);
  return fmt::format("{} [{}{}] {:3.0f} %  {}{}", label, std::string(filled, '#'), std::string(kWidth - filled, '-'),
                     share * 100, Seconds(elapsed_s), TimeLeft(share, elapsed_s));
}

ProgressBar::ProgressBar(std::string label, bool quiet)
    : label_(std::move(label)), shown_(!quiet && CurrentHost() == nullptr && isatty(STDERR_FILENO) != 0) {}

void ProgressBar::Update(int64_t done, int64_t total) {
  if (host_ != nullptr && host_->progress) host_->progress(done, total, label_);
  const Clock::time_point now = Clock::now();
  if (!shown_ || now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  drawn_ = true;
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  PrintError("\r\x1b[K" + ProgressLine(label_, done, total, elapsed_s));
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  drawn_ = false;
  PrintError("\r\x1b[K");
}

ProgressLog::ProgressLog(std::string label, bool quiet, std::chrono::milliseconds period)
    : label_(std::move(label)), shown_(!quiet && isatty(STDERR_FILENO) == 0), period_(period) {}

void ProgressLog::Update(int64_t done, int64_t total) {
  const Clock::time_point now = Clock::now();
  if (!shown_ || now < next_) return;
  next_ = now + period_;
  const double share = ShareOf(done, total), elapsed_s = std::chrono::duration<double>(now - start_).count();
  spdlog::info("{}: {:.0f} % of {}{}", label_, share * 100, Bytes(total), TimeLeft(share, elapsed_s));
}

}  // namespace stoch::cli
