// SPDX-License-Identifier: Apache-2.0
// Counts as what three small factors leave over: an exact factorization of an ScOperator's table that a machine with
// int8 products and cheap look-ups of a few bits wants.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

inline constexpr int kResidualTerms = 3;
// Shifts of |qb| in the terms: |qb| >> shift.
inline constexpr std::array<int, kResidualTerms> kResidualShifts = {2, 4, 6};
// Bound of factors, either sign: a factor times 64 >> its shift fits a signed byte.
inline constexpr std::array<int, kResidualTerms> kMaxResidualFactors = {7, 4, 6};
inline constexpr int kMaxResidual = 7;
inline constexpr int kResidualLevels = 128;
inline constexpr int kResidualWords = kResidualLevels / 8;

// Factors of the terms for a level of side a. The sum of the factors is odd.
struct ResidualFactors {
  std::array<int8_t, kResidualTerms> factor{};
  int8_t unused = 0;
};
static_assert(sizeof(ResidualFactors) == 4);

// count(mask, a, b) of a sign-magnitude operator, written so that a sign costs a complement. For levels a, b >= 0 of
// signs s_a, s_b, with f the factors of (mask, a) times s_a: s_a s_b count = sum over terms k of f[k] c[k](b, s_b) + e
// - (7 - sum of f) / 2 c[k] = b >> shift[k] where s_b > 0, else its complement -(b >> shift[k]) - 1 e = residual(mask,
// a, b), 0..7, where s_a s_b > 0, else its complement 7 - residual A residual is stored in four bits that count 1, 2, 2
// and 2, from bit 0 on: complementing them complements it.
struct ScResiduals {
  std::vector<ResidualFactors> factors;  // [masks][kResidualLevels]
  std::vector<uint32_t> residuals;  // [masks][kResidualLevels][kResidualWords]: level b in nibble b % 8 of word b / 8
};

// The residuals of `op`, or nothing where it has none: another code or table size, or counts that stray further from
// three terms than 3.5. Sign-magnitude operators of 8 bits whose counts are at most 128 and spread evenly have them.
std::optional<ScResiduals> MakeScResiduals(const ScOperator& op);

// The value of four stored bits.
constexpr int ResidualValue(uint32_t bits) {
  return static_cast<int>((bits & 1) + 2 * ((bits >> 1 & 1) + (bits >> 2 & 1) + (bits >> 3 & 1)));
}

}  // namespace stoch
