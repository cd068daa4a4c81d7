// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/gate_steps.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/sc/hardware/adder.h"
#include "kernels/sc/number_source.h"

namespace stoch {

ScGateSteps::ScGateSteps(const ScOperator& op) {
  const ScConfig& config = op.config;
  STOCH_CHECK(config.adder != ScAdder::kCounter && HasSource(config.gate));
  shape_ = {config.adder,    config.gate,       op.code == ScCode::kSignMagnitude, op.levels, op.masks,
            config.stoc_len, config.adder_group};
  const int steps = op.code == ScCode::kOffset ? 2 * op.q_max : op.q_max;
  const std::vector<int> boundaries = LevelBoundaries(op.levels, steps, config.rng_levels);
  for (int mask = 0; mask < op.masks; ++mask) {
    const std::vector<int> a = ComparatorValues(config, ScSide::kA, mask);
    const std::vector<int> b = ComparatorValues(config, ScSide::kB, mask);
    std::vector<uint16_t> least;  // by cycle of side b, the first level that is on
    for (const int value : b) {
      const auto found = std::upper_bound(boundaries.begin(), boundaries.end(), value);
      least.push_back(static_cast<uint16_t>(found - boundaries.begin()));
    }
    for (const int boundary : boundaries) {
      first_step_.push_back(static_cast<uint32_t>(steps_.size()));
      const auto add = [&](bool on) {
        uint16_t count = 0;
        for (size_t t = 0; t < a.size(); ++t) {
          if ((a[t] < boundary) != on) continue;
          // The enabled gate advances side b in the cycles in which side a is on.
          steps_.push_back({static_cast<uint16_t>(t), least[config.gate == ScGate::kEnabled ? count : t]});
          ++count;
        }
        return count;
      };
      num_on_.push_back(add(true));
      if (config.gate == ScGate::kXnor) add(false);
    }
  }
  first_step_.push_back(static_cast<uint32_t>(steps_.size()));
  if (config.adder != ScAdder::kMux) return;
  inputs_ = MuxInputs(config);
  cycles_.assign(static_cast<size_t>(config.adder_group), 0);
  for (const int input : inputs_) ++cycles_[static_cast<size_t>(input)];
}

ScGateTables ScGateSteps::tables() const {
  ScGateTables tables = shape_;
  tables.steps = steps_.data();
  tables.first_step = first_step_.data();
  tables.num_on = num_on_.data();
  tables.inputs = inputs_.data();
  tables.cycles = cycles_.data();
  return tables;
}

int64_t ScGateSteps::bytes() const {
  return static_cast<int64_t>(steps_.size() * sizeof(ScGateTables::Step) + first_step_.size() * sizeof(uint32_t) +
                              num_on_.size() * sizeof(uint16_t) + (inputs_.size() + cycles_.size()) * sizeof(int));
}

}  // namespace stoch
