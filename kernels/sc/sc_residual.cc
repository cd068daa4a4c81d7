// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_residual.h"

#include <cstdlib>

namespace stoch {
namespace {

constexpr uint32_t ResidualBits(int value) { return static_cast<uint32_t>(value & 1) | ((1u << value / 2) - 1) << 1; }

// Twice the distance of a count from sum f[k] (v[k] + 1/2), v[k] = b >> shift[k]: what is left over, centred.
int TwiceRest(int count, const std::array<int, kResidualTerms>& f, int b) {
  int rest = 2 * count;
  for (size_t k = 0; k < f.size(); ++k) rest -= f[k] * (2 * (b >> kResidualShifts[k]) + 1);
  return rest;
}

// Factors with an odd sum that leave at most kMaxResidual / 2 of counts[kResidualLevels].
std::optional<ResidualFactors> FindFactors(const int16_t* counts) {
  constexpr int kTop = kResidualLevels - 1;
  std::array<int, kResidualTerms> f{};
  for (f[0] = 0; f[0] <= kMaxResidualFactors[0]; ++f[0]) {
    for (f[1] = -kMaxResidualFactors[1]; f[1] <= kMaxResidualFactors[1]; ++f[1]) {
      for (f[2] = -kMaxResidualFactors[2]; f[2] <= kMaxResidualFactors[2]; ++f[2]) {
        // Most are too steep or too flat, which the top level shows at once.
        if ((f[0] + f[1] + f[2]) % 2 == 0 || std::abs(TwiceRest(counts[kTop], f, kTop)) > kMaxResidual) continue;
        int b = 0;
        while (b < kTop && std::abs(TwiceRest(counts[b], f, b)) <= kMaxResidual) ++b;
        if (b < kTop) continue;
        ResidualFactors found;
        for (size_t k = 0; k < f.size(); ++k) found.factor[k] = static_cast<int8_t>(f[k]);
        return found;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<ScResiduals> MakeScResiduals(const ScOperator& op) {
  if (op.code != ScCode::kSignMagnitude || op.levels != kResidualLevels) return std::nullopt;
  ScResiduals r;
  for (size_t row = 0; row < static_cast<size_t>(op.masks * kResidualLevels); ++row) {
    const int16_t* counts = &op.counts[row * kResidualLevels];
    const std::optional<ResidualFactors> factors = FindFactors(counts);
    if (!factors) return std::nullopt;
    r.factors.push_back(*factors);
    const std::array<int, kResidualTerms> f = {factors->factor[0], factors->factor[1], factors->factor[2]};
    std::array<uint32_t, kResidualWords> words{};
    for (int b = 0; b < kResidualLevels; ++b) {
      const int residual = (TwiceRest(counts[b], f, b) + kMaxResidual) / 2;
      words[static_cast<size_t>(b / 8)] |= ResidualBits(residual) << (b % 8 * 4);
    }
    r.residuals.insert(r.residuals.end(), words.begin(), words.end());
  }
  return r;
}

}  // namespace stoch
