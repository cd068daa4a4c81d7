// SPDX-License-Identifier: Apache-2.0
#include "research/products/correlation.h"

#include <gtest/gtest.h>

#include "kernels/sc/sc_parameters.h"

namespace stoch {
namespace {

double Scc(int64_t n1, int64_t n2, int64_t n11, int64_t length) {
  double scc = 9;
  EXPECT_TRUE(Correlate(n1, n2, n11, length, &scc));
  return scc;
}

TEST(Correlation, ExtremesAndIndependence) {
  EXPECT_EQ(Scc(4, 6, 4, 8), 1.0);   // one stream within the other
  EXPECT_EQ(Scc(4, 6, 2, 8), -1.0);  // as little overlap as there can be
  EXPECT_EQ(Scc(4, 4, 2, 8), 0.0);
  EXPECT_EQ(Scc(2, 2, 1, 8), (8.0 - 4.0) / (16.0 - 4.0));
  double scc = 9;
  EXPECT_FALSE(Correlate(0, 4, 0, 8, &scc));
  EXPECT_FALSE(Correlate(8, 4, 4, 8, &scc));
  EXPECT_EQ(scc, 9);
}

// Streams bit by bit, and the counts of gate=and from them.
TEST(Correlation, StreamsAreThoseOfTheComparators) {
  ScConfig config;
  config.halve = true;
  config.stoc_len = 100;
  config.scramble_masks = 8;
  config.gate = ScGate::kAnd;
  config = Resolve(config);
  const FreeStreams a(config, ScSide::kA, 8);
  const FreeStreams b(config, ScSide::kB, 8);
  EXPECT_EQ(a.words(), 2);
  EXPECT_EQ(a.levels(), 128);
  const std::vector<int> bounds = LevelBoundaries(128, 127, config.rng_levels);
  for (int mask = 0; mask < 8; ++mask) {
    const std::vector<int> values = ComparatorValues(config, ScSide::kA, mask);
    for (int level = 0; level < 128; level += 9) {
      int ones = 0;
      for (int t = 0; t < 100; ++t) {
        const bool on = values[static_cast<size_t>(t)] < bounds[static_cast<size_t>(level)];
        EXPECT_EQ((a.stream(mask, level)[t / 64] >> (t % 64)) & 1u, on ? 1u : 0u);
        ones += on ? 1 : 0;
      }
      EXPECT_EQ(a.ones(mask, level), ones);
    }
  }
}

TEST(Correlation, OfOneSequenceTwiceIsOne) {
  ScConfig config;
  config.stoc_len = 64;
  config.scramble_masks = 2;
  config.source = ScSource::kList;
  for (int t = 0; t < 64; ++t) config.source_list_a.push_back(t * 4);
  config.source_list_b = config.source_list_a;
  config.halve = true;
  config.scramble = ScScramble::kOff;
  config = Resolve(config);
  const FreeStreams a(config, ScSide::kA, 1);
  const FreeStreams b(config, ScSide::kB, 1);
  const StreamCorrelation same = CorrelateSides(a, b, config.stoc_len, a.levels());
  EXPECT_EQ(same.mean, 1.0);
  EXPECT_EQ(same.mean_abs, 1.0);
  EXPECT_GT(same.pairs, 15000);
  EXPECT_EQ(CorrelateMasks(a, config.stoc_len, a.levels()).pairs, 0);  // one mask has no pairs
}

}  // namespace
}  // namespace stoch
