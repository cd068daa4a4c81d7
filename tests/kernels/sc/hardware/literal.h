// SPDX-License-Identifier: Apache-2.0
// One product as its literal output bits, cycle by cycle (docs/sc_arithmetic.md#4-one-product).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sc/number_source.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::test {

using Settings = std::vector<std::pair<std::string, std::string>>;

inline ScOperatorPtr OperatorOf(const Settings& settings) {
  ScConfig config;
  for (const auto& [name, value] : settings) SetScParameter(config, name, value);
  return MakeScOperator(config);
}

struct LiteralProduct {
  std::vector<bool> bits;  // of the gate, by cycle
  int sign = 1;
};

// Of levels a and b in dimension d.
inline LiteralProduct Literal(const ScOperator& op, int d, int a, int b) {
  const bool bipolar = op.code == ScCode::kSignMagnitude;
  const int offset = op.code == ScCode::kOffset ? op.q_max : 0;
  const double steps = op.code == ScCode::kOffset ? 2.0 * op.q_max : op.q_max;
  const auto bound = [&](int level) {
    const int index = bipolar ? std::abs(level) : level + offset;
    return static_cast<int>(std::nearbyint(index * op.config.rng_levels / steps));
  };
  const std::vector<int> va = ComparatorValues(op.config, ScSide::kA, d % op.masks);
  const std::vector<int> vb = ComparatorValues(op.config, ScSide::kB, d % op.masks);
  LiteralProduct product;
  product.sign = bipolar && (a < 0) != (b < 0) ? -1 : 1;
  size_t enabled = 0;
  for (size_t t = 0; t < va.size(); ++t) {
    const bool on_a = va[t] < bound(a);
    if (op.config.gate == ScGate::kEnabled) {
      product.bits.push_back(on_a && vb[enabled] < bound(b));
      enabled += on_a ? 1 : 0;
    } else {
      const bool on_b = vb[t] < bound(b);
      product.bits.push_back(op.config.gate == ScGate::kXnor ? on_a == on_b : on_a && on_b);
    }
  }
  return product;
}

}  // namespace stoch::test
