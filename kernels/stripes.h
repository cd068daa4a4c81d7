// SPDX-License-Identifier: Apache-2.0
// Dealing the positions of sequences over devices in stripes that are whole lanes of every float sum of attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/handles.h"

namespace stoch {

// Positions after which the stripes repeat: kDotLanes, of which kRowLanes is a multiple.
inline constexpr int64_t kStripePeriod = 16;
// 1, 2, 4 or 8 devices: each owns an equal part of the lanes of either kind, and at least two of them.
inline constexpr bool IsStripeCount(int64_t count) { return count == 1 || count == 2 || count == 4 || count == 8; }

// Device `index` of `count` owns the positions t with (t mod 16) / (16 / count) = index. They have local positions 0, 1,
// 2, ... in ascending order. Requires: IsStripeCount(count), 0 <= index < count.
struct Stripe {
  int index = 0;
  int count = 1;

  int64_t width() const { return kStripePeriod / count; }  // positions in a row
  bool Owns(int64_t position) const { return position % kStripePeriod / width() == index; }
  // Owned positions below `position`; of an owned one, its local position.
  int64_t Below(int64_t position) const {
    return position / kStripePeriod * width() +
           std::clamp<int64_t>(position % kStripePeriod - index * width(), 0, width());
  }
  int64_t Absolute(int64_t local) const { return local / width() * kStripePeriod + index * width() + local % width(); }
};

// Rows of one sequence of a pass that one device runs: consecutive local positions.
struct DealtRows {
  int32_t first_row = 0;  // among the device's rows, which keep the order of the pass
  int32_t num_rows = 0;
  int32_t first_local = 0;  // local position of first_row
};

// Rows of a pass that each device runs, by sequence of the pass.
inline std::vector<DealtRows> DealPass(const PassLayout& pass, const Stripe& stripe) {
  std::vector<DealtRows> dealt;
  int32_t rows = 0;
  for (const PassLayout::Sequence& sequence : pass.sequences) {
    const auto begin = static_cast<int32_t>(stripe.Below(sequence.start_position));
    const auto end = static_cast<int32_t>(stripe.Below(int64_t{sequence.start_position} + sequence.num_rows));
    dealt.push_back({rows, end - begin, begin});
    rows += end - begin;
  }
  return dealt;
}

// The most rows that one of `count` devices may have of a pass of up to `max_rows` rows and `max_sequences` sequences.
inline int64_t MaxDealtRows(int64_t max_rows, int64_t max_sequences, int64_t count) {
  const int64_t width = kStripePeriod / count;
  // Every sequence begins with the whole stripe of one device; what is left runs through whole periods.
  const int64_t first = std::min(max_rows, max_sequences * width);
  const int64_t rest = max_rows - first;
  return first + rest / kStripePeriod * width + std::max<int64_t>(0, rest % kStripePeriod - (kStripePeriod - width));
}

}  // namespace stoch
