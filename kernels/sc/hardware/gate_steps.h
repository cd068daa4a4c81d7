// SPDX-License-Identifier: Apache-2.0
// How the streams of an operator with an adder of gates meet, as kernels read it (kernels/cpu/simd/gate_sums.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Plain pointers, for the kernels.
struct ScGateTables {
  // A cycle whose bit is on where side b's level is `level` at least; no level of side b is the number of levels.
  struct Step {
    uint16_t cycle, level;
  };

  ScAdder adder = ScAdder::kCounter;
  ScGate gate = ScGate::kEnabled;
  bool has_signs = false;  // in bit 7 of codes
  int levels = 0;
  int masks = 0;
  int stoc_len = 0;
  int group = 0;
  // steps[first_step[m * levels + a]..first_step[m * levels + a + 1]) of mask m and level a, the first num_on[m * levels
  // + a] of them as above; those after them, which kXnor alone has, are on where side b's level is below `level`.
  const Step* steps = nullptr;
  const uint32_t* first_step = nullptr;
  const uint16_t* num_on = nullptr;
  const int* inputs = nullptr;  // kMux: [stoc_len], the input that a cycle takes
  const int* cycles = nullptr;  // kMux: [group], how many cycles take an input
};

// Owns the memory behind ScGateTables. Immutable; threads: safe.
class ScGateSteps {
 public:
  // Requires: op.config.adder is not the counter.
  explicit ScGateSteps(const ScOperator& op);

  ScGateTables tables() const;
  int64_t bytes() const;

 private:
  ScGateTables shape_;
  std::vector<ScGateTables::Step> steps_;
  std::vector<uint32_t> first_step_;
  std::vector<uint16_t> num_on_;
  std::vector<int> inputs_, cycles_;
};

}  // namespace stoch
