// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation/draft_lengths.h"

#include <algorithm>

namespace stoch {
namespace {

// Time of a pass over that of one row, until passes of so many rows have been timed: on an H200 an 8B model takes 1.4, 1.7, 2.8,
// 4.2 and 6.1 times as long for 4, 8, 16, 32 and 64 rows.
constexpr double kLikelyRowCost = 0.12;
double LikelyCost(int64_t rows) { return 1 + kLikelyRowCost * static_cast<double>(rows - 1); }

constexpr double kLeastGain = 1.03;  // tokens per time, over passes without drafts
// Lengths that are tried: few, so that a pass of each is soon timed and recorded.
constexpr std::array<int64_t, 4> kLengths = {1, 3, 7, 15};

constexpr int64_t kManyRows = 32;  // from here on a row more costs what one of a prompt does

// A row for a token that is less likely than this is not worth it.
constexpr double kLeastLikely = 0.2;

// The first drafts that are likely enough, at most `most`.
struct Likely {
  int64_t length = 0;
  double tokens = 0;  // that a pass is expected to bring from them
};
Likely LikelyDrafts(const std::vector<DraftedToken>& drafts, int64_t most) {
  Likely likely;
  double all_right = 1;
  for (const DraftedToken& draft : drafts) {
    all_right *= draft.likely;
    if (likely.length == most || all_right < kLeastLikely) break;
    ++likely.length;
    likely.tokens += all_right;
  }
  return likely;
}

}  // namespace

void PassTimes::Add(int64_t rows, double ms) {
  Last& last = times_[rows];
  last.ms[last.count++ % kKept] = ms;
}

void PassTimes::AddPrompt(int64_t rows, double ms) {
  if (rows >= kManyRows) prompt_row_ms_ = ms / static_cast<double>(rows);
}

double PassTimes::Median(int64_t rows) const {
  const auto found = times_.find(rows);
  if (found == times_.end()) return 0;
  std::array<double, kKept> ms = found->second.ms;
  const auto count = static_cast<std::ptrdiff_t>(std::min(found->second.count, kKept));
  std::nth_element(ms.begin(), ms.begin() + count / 2, ms.begin() + count);
  return ms[static_cast<size_t>(count / 2)];
}

double PassTimes::Ratio(int64_t rows, int64_t base) const {
  const double with = Median(rows);
  const double without = Median(base);
  if (with > 0 && without > 0) return with / without;
  const double likely = LikelyCost(rows) / LikelyCost(base);
  if (without == 0) return likely;
  // A CPU takes nearly as long for each row of a prompt as for a pass of one.
  return std::max(likely, 1 + prompt_row_ms_ / without * static_cast<double>(rows - base));
}

std::optional<double> PassTimes::Ms(int64_t rows) const {
  if (times_.empty()) return std::nullopt;
  auto nearest = times_.lower_bound(rows);
  if (nearest == times_.end() || (nearest->first != rows && nearest != times_.begin())) {
    const auto above = nearest;
    --nearest;
    if (above != times_.end() && above->first - rows < rows - nearest->first) nearest = above;
  }
  const double ms = Median(nearest->first);
  if (rows > kManyRows && rows > 2 * nearest->first && prompt_row_ms_ > 0) {
    return ms + prompt_row_ms_ * static_cast<double>(rows);
  }
  return ms * LikelyCost(rows) / LikelyCost(nearest->first);
}

std::vector<int64_t> ChooseDraftLengths(std::span<const std::vector<DraftedToken>> drafts, int64_t max_rows,
                                        const PassTimes& times) {
  const auto sequences = static_cast<int64_t>(drafts.size());
  std::vector<int64_t> best(drafts.size(), 0);
  double best_gain = kLeastGain;
  for (const int64_t most : kLengths) {
    std::vector<int64_t> lengths(drafts.size(), 0);
    int64_t rows = sequences;
    auto tokens = static_cast<double>(sequences);
    for (size_t i = 0; i < drafts.size(); ++i) {
      const Likely likely = LikelyDrafts(drafts[i], most);
      lengths[i] = likely.length;
      rows += likely.length;
      tokens += likely.tokens;
    }
    if (rows > max_rows || rows == sequences) continue;
    const double gain = tokens / static_cast<double>(sequences) / times.Ratio(rows, sequences);
    if (gain <= best_gain) continue;
    best_gain = gain;
    best = lengths;
  }
  return best;
}

}  // namespace stoch
