// SPDX-License-Identifier: Apache-2.0
// Number sources: the comparator values of one side, cycle by cycle.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sc/sc_config.h"

namespace stoch {

enum class ScSide : uint8_t { kA, kB };

// The unscrambled values of a source, cycles 0..length-1, each in 0..2^sc_prec - 1. kSobol: Gray-code order from
// direction numbers, period 2^p, the pair of the published simulator. kLfsr: states of a maximal Fibonacci register
// (1..2^p-1, period 2^p-1); side b has lfsr_taps_b and source_seed_b, or the reciprocal polynomial and another start, `phase` steps are taken before
// cycle 0. kVanDerCorput: radical inverse of the cycle, base 2 (side a) and 3 (side b), times 2^p, floored. kRandom:
// RandomBits(seed of the side, side, cycle). kList: the user's list.
// Requires: config resolved.
// Source: Joe and Kuo direction numbers (Sobol); Alfke, XAPP052 (taps); Halton, Numerische Mathematik 2 (1960).
std::vector<int> SourceValues(const ScConfig& config, ScSide side, int length, int phase);

// The scrambling mask of mask index i (0..scramble_masks-1), applied by xor; 0 where none is.
int ScrambleMask(const ScConfig& config, int index);

// Number of distinct masks a table needs: scramble_masks, or 1 where every dimension is treated alike.
int DistinctMasks(const ScConfig& config);

// The values side `side` compares with under mask index i: source, scrambled, mapped to the comparator grid
// (0..rng_levels-1), first stoc_len cycles. Source: docs/sc_arithmetic.md#3-number-sources.
std::vector<int> ComparatorValues(const ScConfig& config, ScSide side, int index);

// The comparator's boundary of levels 0..levels-1, each at most `steps`: rint(level * rng_levels / steps), half to even, in
// integers. Source: docs/sc_arithmetic.md#2-quantizers.
std::vector<int> LevelBoundaries(int levels, int steps, int rng_levels);

}  // namespace stoch
