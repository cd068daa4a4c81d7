// SPDX-License-Identifier: Apache-2.0
// How many drafted tokens a pass should check: as many as bring tokens faster than passes without them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/speculation/draft_source.h"

namespace stoch {

// How long passes of decoding sequences take, by how many rows they have: the median of the last ones.
class PassTimes {
 public:
  void Add(int64_t rows, double ms);
  // A pass over rows of prompts. Of many, it tells what a row more costs where rows are not free.
  void AddPrompt(int64_t rows, double ms);
  bool knows_prompts() const { return prompt_row_ms_ > 0; }
  // Time of a pass of `rows` over that of a pass of `base` rows. Where one of the two has not been timed: an estimate, so
  // that it is tried and then timed.
  double Ratio(int64_t rows, int64_t base) const;
  // Time of a pass of `rows` in ms. Where none has been timed: an estimate from the nearest that has, and for many rows from
  // those of prompts; nullopt before any pass was timed.
  std::optional<double> Ms(int64_t rows) const;

 private:
  static constexpr size_t kKept = 5;
  struct Last {
    std::array<double, kKept> ms{};
    size_t count = 0;
  };
  double Median(int64_t rows) const;  // 0: not seen

  std::map<int64_t, Last> times_;
  double prompt_row_ms_ = 0;  // 0: not seen
};

// For one pass of the sequences whose drafts are given, a row each besides: how many drafts of each it should check.
// max_rows: of the pass, the drafts included.
// Returns: as many numbers as there are sequences; all 0 where drafts would not pay.
std::vector<int64_t> ChooseDraftLengths(std::span<const std::vector<DraftedToken>> drafts, int64_t max_rows,
                                        const PassTimes& times);

}  // namespace stoch
