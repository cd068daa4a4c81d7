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

// Factors with an odd sum that leave at most kMaxResidual / 2 everywhere.
std::optional<ResidualFactors> FindFactors(const int16_t* counts, int levels) {
  const int top = levels - 1;
  std::array<int, kResidualTerms> f{};
  for (f[0] = 0; f[0] <= 7; ++f[0]) {
    for (f[1] = -4; f[1] <= 4; ++f[1]) {
      for (f[2] = -6; f[2] <= 6; ++f[2]) {
        if ((f[0] + f[1] + f[2]) % 2 == 0 || std::abs(TwiceRest(counts[top], f, top)) > kMaxResidual) continue;
        int b = 0;
        while (b < top && std::abs(TwiceRest(counts[b], f, b)) <= kMaxResidual) ++b;
        if (b < top) continue;
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
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int a = 0; a < kResidualLevels; ++a) {
      std::optional<ResidualFactors> found;
      // Levels that the operator does not have do not occur.
      const int16_t* counts = &op.counts[(static_cast<size_t>(mask) * static_cast<size_t>(op.levels) +
                                          static_cast<size_t>(std::min(a, op.levels - 1))) *
                                         static_cast<size_t>(op.levels)];
      found = FindFactors(counts, op.levels);
      if (!found) return std::nullopt;
      r.factors.push_back(*found);
      const std::array<int, kResidualTerms> f = {found->factor[0], found->factor[1], found->factor[2]};
      std::array<uint32_t, kResidualWords> words{};
      for (int b = 0; b < op.levels; ++b) {
        const int residual = (TwiceRest(counts[b], f, b) + kMaxResidual) / 2;
        words[static_cast<size_t>(b / 8)] |= ResidualBits(residual) << (b % 8 * 4);
      }
      r.residuals.insert(r.residuals.end(), words.begin(), words.end());
    }
  }
  return r;
}

}  // namespace stoch
