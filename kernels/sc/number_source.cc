// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/number_source.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/base/check.h"
#include "kernels/math/random.h"
#include "kernels/sc/lfsr.h"

namespace stoch {
namespace {

std::vector<int> SobolValues(int sc_prec, ScSide side, int length) {
  std::array<int, 8> seeds = {1, 1, 1, 1, 1, 1, 1, 1};
  if (side == ScSide::kB) {
    if (sc_prec >= 5) seeds[4] = 9;
    if (sc_prec >= 7) seeds[6] = 41;
    if (sc_prec == 8) seeds[7] = 255;
  }
  std::vector<int> values(static_cast<size_t>(length));
  int x = 0;
  for (int n = 0; n < length; ++n) {
    values[static_cast<size_t>(n)] = x;
    const int lowest_zero = std::countr_one(static_cast<unsigned>(n));
    // The period ends with the last bit set; the next value would start over at 0.
    x = lowest_zero < sc_prec ? x ^ (seeds[static_cast<size_t>(lowest_zero)] << (sc_prec - 1 - lowest_zero)) : 0;
  }
  return values;
}

// Feedback masks of maximal polynomials x^p + ... + 1, bit i = tap of stage i + 1 (XAPP052).
constexpr std::array<unsigned, 9> kLfsrTaps = {0, 0, 0, 0b110, 0b1100, 0b10100, 0b110000, 0b1100000, 0b10111000};

std::vector<int> LfsrValues(const ScConfig& config, ScSide side, int length, int phase) {
  const int p = config.sc_prec;
  const unsigned states = (1u << p) - 1;
  unsigned taps = config.lfsr_taps.empty() ? kLfsrTaps[static_cast<size_t>(p)] : LfsrMask(config.lfsr_taps);
  uint64_t start = config.source_seed;
  if (side == ScSide::kB) {
    taps = config.lfsr_taps_b.empty() ? ReciprocalLfsrMask(taps, p) : LfsrMask(config.lfsr_taps_b);
    start = config.source_seed_b.value_or(RandomBits(config.source_seed, 1, 0));
  }
  unsigned state = static_cast<unsigned>(start % states) + 1;
  std::vector<int> values(static_cast<size_t>(length));
  for (int n = -phase; n < length; ++n) {
    if (n >= 0) values[static_cast<size_t>(n)] = static_cast<int>(state);
    state = LfsrStep(state, taps, p);
  }
  return values;
}

std::vector<int> RadicalInverseValues(int sc_prec, int base, int length) {
  std::vector<int> values(static_cast<size_t>(length));
  for (int n = 0; n < length; ++n) {
    int64_t numerator = 0;
    int64_t denominator = 1;
    for (int rest = n; rest > 0; rest /= base) {
      numerator = numerator * base + rest % base;
      denominator *= base;
    }
    values[static_cast<size_t>(n)] = static_cast<int>((numerator << sc_prec) / denominator);
  }
  return values;
}

}  // namespace

std::vector<int> SourceValues(const ScConfig& config, ScSide side, int length, int phase) {
  const bool a = side == ScSide::kA;
  switch (config.source) {
    case ScSource::kSobol: return SobolValues(config.sc_prec, side, length);
    case ScSource::kLfsr: return LfsrValues(config, side, length, phase);
    case ScSource::kVanDerCorput: return RadicalInverseValues(config.sc_prec, a ? 2 : 3, length);
    case ScSource::kRandom: {
      std::vector<int> values(static_cast<size_t>(length));
      const uint64_t seed = a ? config.source_seed : config.source_seed_b.value_or(config.source_seed);
      for (size_t n = 0; n < values.size(); ++n) {
        values[n] = static_cast<int>(RandomBits(seed, a ? 2 : 3, n) >> (64 - config.sc_prec));
      }
      return values;
    }
    case ScSource::kList: {
      const std::vector<int>& list = a ? config.source_list_a : config.source_list_b;
      return {list.begin(), list.begin() + length};
    }
  }
  STOCH_CHECK(false);
}

int ScrambleMask(const ScConfig& config, int index) {
  const int p = config.sc_prec;
  switch (config.scramble) {
    case ScScramble::kOff: return 0;
    case ScScramble::kCounter: return index;
    case ScScramble::kRandom:
      return static_cast<int>(RandomBits(config.source_seed, 4, static_cast<uint64_t>(index)) >> (64 - p));
    case ScScramble::kBitrev: {
      int reversed = 0;
      for (int bit = 0; bit < p; ++bit) reversed |= ((index >> bit) & 1) << (p - 1 - bit);
      return reversed;
    }
  }
  STOCH_CHECK(false);
}

int DistinctMasks(const ScConfig& config) {
  if (config.source == ScSource::kLfsr && config.lfsr_restart == ScRestart::kMask) return config.scramble_masks;
  const int full = 1 << config.sc_prec;
  // The full grid over the full length sees every value whatever the mask: the published code does not scramble it.
  const bool unscrambled = config.rng_levels == full && config.stoc_len == full;
  return config.scramble == ScScramble::kOff || unscrambled ? 1 : config.scramble_masks;
}

std::vector<int> ComparatorValues(const ScConfig& config, ScSide side, int index) {
  const bool shifted = config.source == ScSource::kLfsr && config.lfsr_restart == ScRestart::kMask;
  std::vector<int> values = SourceValues(config, side, config.stoc_len, shifted ? index : 0);
  const int mask = shifted || DistinctMasks(config) == 1 ? 0 : ScrambleMask(config, index);
  for (int& value : values) value = ((value ^ mask) * config.rng_levels) >> config.sc_prec;
  return values;
}

std::vector<int> LevelBoundaries(int levels, int steps, int rng_levels) {
  std::vector<int> boundaries(static_cast<size_t>(levels));
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t scaled = std::min<int64_t>(level, steps) * rng_levels;
    int64_t v = scaled / steps;
    const int64_t twice_rest = 2 * (scaled % steps);
    if (twice_rest > steps || (twice_rest == steps && v % 2 == 1)) ++v;
    boundaries[static_cast<size_t>(level)] = static_cast<int>(v);
  }
  return boundaries;
}

}  // namespace stoch
