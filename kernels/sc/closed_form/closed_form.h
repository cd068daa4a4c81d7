// SPDX-License-Identifier: Apache-2.0
// The closed form of gate=enabled: counts as two look-ups of a few entries each, for number sources whose aligned blocks
// of cycles run through all high digits while the low ones stay.
// Source: docs/closed-form.md has the theorem with its proof.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Let S be `block`, R the levels of the comparator's grid, W = R / S. A level of side a enables k = S q + r cycles,
// 0 <= r < S; a level of side b is the boundary v = W h + l, 0 <= l < W. With the tables below
//   count = q h + P(k; h) + G(q; l) + (delta(k; h) AND lambda(q; l))                                 form A
//         = (H + L) / 2 rounded down, H = 2 (q h + P(k; h)) + delta(k; h), L = 2 G(q; l) + lambda(q; l)   form B
// for every mask, level of a and level of b.
struct ScClosedForm {
  int block = 0;   // S, a power of two
  int lows = 0;    // W
  int cycles = 0;  // stream length L
  int masks = 0;
  int levels = 0;
  std::vector<uint16_t> enabled;    // [masks][levels]: k
  std::vector<uint16_t> high, low;  // [levels]: h in 0..S, l in 0..W-1
  // Tables by pattern, since most (mask, k) and (mask, q) share theirs.
  std::vector<uint16_t> high_pattern;  // [masks][cycles + 1]
  std::vector<uint16_t> low_pattern;   // [masks][cycles / block + 1]
  std::vector<uint8_t> high_sums;      // P, [patterns][S + 1]
  std::vector<uint8_t> high_steps;     // delta, [patterns][S + 1]: 0 or 1, 0 at S
  std::vector<uint8_t> low_sums;       // G, [patterns][W]
  std::vector<uint8_t> low_steps;      // lambda, [patterns][W]: 0 or 1, 0 at 0
};

// The tables of form B of one k: the count of boundary W h + l is (high[h] + low[l]) / 2 rounded down.
struct ScAverageTables {
  std::vector<int> high;  // [S + 1]
  std::vector<int> low;   // [W]
};

// The closed form of `op` in blocks of 2^log2_block cycles, or nothing where it does not hold. Both forms are compared
// with op.count of every mask and pair of levels, so a result is exact. Takes some 5 ms for 64 masks of 128 levels.
// Requires: log2_block >= 1.
// Nothing: for another gate, a grid that is no power of two or smaller than a block, and sources without the property.
std::optional<ScClosedForm> MakeScClosedForm(const ScOperator& op, int log2_block);

// Whether the sources of `op` have the property that the forms follow from: MakeScClosedForm without the comparison. Takes
// some 100 us.
bool HasClosedForm(const ScOperator& op, int log2_block);

// The tables without the comparison, for what only asks about their shape.
std::optional<ScClosedForm> MakeClosedFormTables(const ScOperator& op, int log2_block);

// count of op, by form A.
int ClosedFormCount(const ScClosedForm& form, int mask, int a, int b);

// Requires: 0 <= k <= form.cycles.
ScAverageTables MakeAverageTables(const ScClosedForm& form, int mask, int k);

}  // namespace stoch
