// SPDX-License-Identifier: Apache-2.0
#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "app/host/standard_error.h"

namespace stoch::cli {
namespace {

std::string Seconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto minutes = static_cast<int64_t>(seconds / 60);
  return fmt::format("{} min {:02} s", minutes, static_cast<int64_t>(seconds) - 60 * minutes);
}

}  // namespace

std::string ProgressLine(const std::string& label, int64_t done, int64_t total, double elapsed_s) {
  constexpr int64_t kWidth = 30;
  const double share = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const auto filled = static_cast<size_t>(share * kWidth);
  std::string line = fmt::format("{} [{}{}] {:3.0f} %  {}", label, std::string(filled, '#'),
                                 std::string(kWidth - filled, '-'), share * 100, Seconds(elapsed_s));
  if (share > 0 && share < 1) line += fmt::format(", {} left", Seconds(elapsed_s * (1 - share) / share));
  return line;
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

}  // namespace stoch::cli
