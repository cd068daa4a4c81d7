// SPDX-License-Identifier: Apache-2.0
// Operators of tests of the closed forms, and the signed products that they are compared with.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/sc/sc_operator.h"
#include "kernels/sc/sc_parameters.h"

namespace stoch::test {

using Entries = std::vector<std::pair<std::string, std::string>>;  // parameters and values

inline ScOperatorPtr Operator(const Entries& entries) {
  ScConfig config;
  for (const auto& [key, value] : entries) SetScParameter(config, key, value);
  return MakeScOperator(config);
}

// A count with the signs of both codes.
inline int Signed(int count, int a, int b) { return ((a ^ b) & 0x80) != 0 ? -count : count; }

}  // namespace stoch::test
