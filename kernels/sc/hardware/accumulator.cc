// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/accumulator.h"

#include <cstdlib>
#include <string>

#include "kernels/base/error.h"

namespace stoch {

ScAccumulator::ScAccumulator(const ScOperator& op, int64_t most_dims) : config_(op.config) {
  view_.signs_apart = op.code != ScCode::kAsymmetric && config_.gate != ScGate::kXnor;
  view_.is_xnor = config_.gate == ScGate::kXnor;
  view_.acc_bits = config_.acc_bits;
  view_.acc_group = config_.acc_group;
  view_.fault_acc_bit = config_.fault_acc_bit;
  view_.flips_register = config_.fault_acc > 0;
  if (config_.fault_product > 0) {
    const int64_t bits = most_dims * config_.stoc_len;
    if (bits >= int64_t{1} << 32) {
      throw InvalidInput("SC parameter fault_product: " + std::to_string(most_dims) + " dimensions of stoc_len = " +
                         std::to_string(config_.stoc_len) + " cycles: allowed are fewer than 2^32 bits in a sum");
    }
    flips_ = MakeBinomialTable(config_.fault_product, bits);
    view_.product_flips = flips_->view();
  }
  if (config_.fault_acc > 0) {
    register_line_ = MakeBinomialLine(config_.fault_acc_bit >= 0 ? 1 : config_.acc_bits, config_.fault_acc);
    view_.register_flips = register_line_.view();
  }
  if (config_.adder == ScAdder::kCounter) return;
  adder_ = std::make_unique<const ScAdderStreams>(op);
  gate_steps_ = std::make_unique<const ScGateSteps>(op);
}

int64_t ScAccumulator::bytes() const {
  return (flips_ == nullptr ? 0 : flips_->bytes()) + (adder_ == nullptr ? 0 : adder_->bytes() + gate_steps_->bytes()) +
         static_cast<int64_t>(register_line_.entries.size() * sizeof(uint64_t));
}

ScAccumulator::Row ScAccumulator::KeysOf(const ScSite& site, uint64_t row) const {
  Row keys;
  if (flips_ != nullptr) keys.product_key = FaultKey(config_.fault_seed, FaultKind::kProduct, site, row);
  if (config_.fault_acc > 0) keys.acc_key = FaultKey(config_.fault_seed, FaultKind::kAcc, site, row);
  return keys;
}

int SignedCount(const ScOperator& op, int64_t d, int a, int b) {
  const int mask = static_cast<int>(d % op.masks);
  switch (op.code) {
    case ScCode::kAsymmetric: return op.count(mask, a, b);
    case ScCode::kOffset: return op.count(mask, a + op.q_max, b + op.q_max);
    case ScCode::kSignMagnitude: break;
  }
  const int count = op.count(mask, std::abs(a), std::abs(b));
  return (a < 0) != (b < 0) ? -count : count;
}

int32_t AccumulateLevels(const ScOperator& op, const ScAccumulator& accumulator, const ScLevelRange& range,
                         const ScAccumulator::Row& row, uint64_t column) {
  const int64_t end = range.begin + range.dims;
  int64_t acc = 0, negatives = 0;
  if (accumulator.wants_negatives()) {
    for (int64_t d = range.begin; d < end; ++d) negatives += (range.a[d] < 0) != (range.b[d] < 0) ? 1 : 0;
  }
  if (accumulator.adder() != nullptr) {
    // Groups begin at the chunk, so at the last multiple that is not after the range.
    const int64_t skipped = range.begin - range.chunk_begin;
    const int64_t first = range.begin - skipped % accumulator.config().adder_group;
    acc = accumulator.adder()->Sum(range.a + first, range.b + first, 1, first, end - first);
  } else {
    const int64_t group = accumulator.config().acc_group;
    int64_t part = 0;
    for (int64_t d = range.begin; d < end; ++d) {
      part += SignedCount(op, d, range.a[d], range.b[d]);
      if (group == 0 || ((d + 1 - range.chunk_begin) % group != 0 && d + 1 < end)) continue;
      acc = accumulator.Clamp(acc + part);
      part = 0;
    }
    acc += part;
  }
  return accumulator.Finish(acc, negatives, range.dims, op.config.stoc_len, row, column);
}

}  // namespace stoch
