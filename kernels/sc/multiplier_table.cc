// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/multiplier_table.h"

#include <algorithm>
#include <cstdlib>

namespace stoch {
namespace {

// |e| is below 2^18 and there are 2^16 pairs: sums of e^2 stay below 2^52, which both types hold.
MultiplierError Measure(const MultiplierTable& table, int low, int high) {
  MultiplierError result;
  int64_t absolute = 0;
  int64_t squares = 0;
  int64_t sum = 0;
  int64_t wrong = 0;
  double relative = 0;
  for (int a = low; a <= high; ++a) {
    for (int b = low; b <= high; ++b) {
      const int64_t exact = static_cast<int64_t>(a) * b;
      const int64_t e = table.at(a, b) - exact;
      absolute += std::abs(e);
      squares += e * e;
      sum += e;
      wrong += e != 0 ? 1 : 0;
      result.wce = std::max(result.wce, std::abs(e));
      relative += static_cast<double>(std::abs(e)) / static_cast<double>(std::max<int64_t>(1, std::abs(exact)));
    }
  }
  const auto n = static_cast<double>(high - low + 1) * static_cast<double>(high - low + 1);
  result.mae = static_cast<double>(absolute) / n;
  result.mre = relative / n;
  result.ep = static_cast<double>(wrong) / n;
  result.mse = static_cast<double>(squares) / n;
  result.bias = static_cast<double>(sum) / n;
  return result;
}

}  // namespace

MultiplierError MeasureMultiplier(const MultiplierTable& table) {
  return table.is_signed ? Measure(table, -128, 127) : Measure(table, 0, 255);
}

MultiplierError MeasureMultiplier(const MultiplierTable& table, ScTableCode code) {
  switch (code) {
    case ScTableCode::kFile:
      return MeasureMultiplier(table, table.is_signed ? ScTableCode::kSigned : ScTableCode::kUnsigned);
    case ScTableCode::kSigned: return Measure(table, -127, 127);
    case ScTableCode::kSignMagnitude: return Measure(table, 0, 127);
    case ScTableCode::kUnsigned: return Measure(table, 0, 255);
  }
  return {};
}

}  // namespace stoch
