// SPDX-License-Identifier: Apache-2.0
// Correlation of the bitstreams that comparators make, without a gate between them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sc/number_source.h"
#include "kernels/sc/sc_config.h"

namespace stoch {

// Means of the correlation of streams (SCC, -1..1) over pairs that have one.
struct StreamCorrelation {
  double mean = 0, mean_abs = 0;
  int64_t pairs = 0;  // 0: no pair has one, and the means are 0
};

// SCC of two streams of `length` cycles with n1 and n2 ones, n11 of them in the same cycle. Returns false where it is not
// defined: a stream without ones or without zeros.
// Source: A. Alaghi and J. P. Hayes, Exploiting correlation in stochastic circuit design, ICCD 2013.
bool Correlate(int64_t n1, int64_t n2, int64_t n11, int64_t length, double* scc);

// The free-running streams of one side: bit t of a level is whether the comparator is on in cycle t.
class FreeStreams {
 public:
  // The first `masks` masks of a configuration. Requires: config resolved, with streams.
  FreeStreams(const ScConfig& config, ScSide side, int masks);

  int masks() const { return masks_; }
  int levels() const { return levels_; }
  int words() const { return words_; }
  // [words], bit t % 64 of word t / 64 is cycle t.
  const uint64_t* stream(int mask, int level) const { return bits_.data() + Index(mask, level) * words_; }
  int ones(int mask, int level) const { return ones_[static_cast<size_t>(Index(mask, level))]; }

 private:
  int64_t Index(int mask, int level) const { return int64_t{mask} * levels_ + level; }

  int masks_, levels_, words_;
  std::vector<uint64_t> bits_;
  std::vector<int> ones_;
};

// Side a with side b in one dimension, over masks and pairs of levels but the two extremes of the code.
// Requires: both sides of one configuration, of `length` cycles.
StreamCorrelation CorrelateSides(const FreeStreams& a, const FreeStreams& b, int length, int q_levels);
// One side with itself under another mask, at equal levels, over all pairs of masks: neighbouring dimensions.
StreamCorrelation CorrelateMasks(const FreeStreams& side, int length, int q_levels);

// Levels that a quantizer makes, 0..count-1: Q + 1, or 2Q + 1 of gate=xnor. Requires: config resolved.
int QuantizerLevels(const ScConfig& config);

}  // namespace stoch
