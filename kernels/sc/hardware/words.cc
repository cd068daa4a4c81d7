// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/words.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/math/quantize.h"

namespace stoch {

int LevelOfCode(const ScOperator& op, uint8_t code) {
  switch (op.code) {
    case ScCode::kSignMagnitude: return (code & 0x80) != 0 ? -(code & 0x7f) : code;
    case ScCode::kOffset: return code - op.q_max;
    case ScCode::kAsymmetric: break;
  }
  return code;
}

uint8_t CodeOfLevel(const ScOperator& op, int level) {
  switch (op.code) {
    case ScCode::kSignMagnitude: return SignMagnitude(level);
    case ScCode::kOffset: return static_cast<uint8_t>(level + op.q_max);
    case ScCode::kAsymmetric: break;
  }
  return static_cast<uint8_t>(level);
}

ScWordFaults::Form ScWordFaults::FormOf(const ScOperator& op) {
  const ScConfig& config = op.config;
  if (IntBits(config.arith) > 0) return Form::kTwosComplement;
  if (op.code == ScCode::kAsymmetric) return Form::kUnsigned;
  if (op.code == ScCode::kSignMagnitude) return Form::kSignMagnitude;
  switch (config.gate) {
    case ScGate::kTable:
      return config.table_code == ScTableCode::kSignMagnitude ? Form::kSignMagnitude : Form::kTwosComplement;
    case ScGate::kCounts:  // magnitudes may be kept as the counts of their signed products
      return config.count_table.get()->levels == 1 << config.sc_prec ? Form::kOffset : Form::kSignMagnitude;
    case ScGate::kEnabled:
    case ScGate::kAnd:
    case ScGate::kXnor: break;
  }
  return Form::kOffset;
}

ScWordFaults::ScWordFaults(const ScOperator& op, double rate)
    : rate_(rate),
      form_(FormOf(op)),
      q_max_(op.q_max),
      bits_(IntBits(op.config.arith) > 0 ? IntBits(op.config.arith) : op.config.sc_prec) {
  if (any()) line_ = MakeBinomialLine(bits_, rate);
}

int ScWordFaults::Read(int level, uint64_t key, uint64_t column) const {
  const auto flips = static_cast<int>(FlippedBits(line_, bits_, key, column));
  if (flips == 0) return level;
  const int sign_bit = 1 << (bits_ - 1);
  switch (form_) {
    case Form::kSignMagnitude: {
      const int word = (std::abs(level) | (level < 0 ? sign_bit : 0)) ^ flips;
      const int magnitude = word & (sign_bit - 1);
      return (word & sign_bit) != 0 ? -magnitude : magnitude;
    }
    case Form::kOffset: return std::min((level + q_max_) ^ flips, 2 * q_max_) - q_max_;
    case Form::kUnsigned: return level ^ flips;
    case Form::kTwosComplement: break;
  }
  const int word = (level & (2 * sign_bit - 1)) ^ flips;
  const int value = (word & sign_bit) != 0 ? word - 2 * sign_bit : word;
  return std::max(value, -q_max_);
}

}  // namespace stoch
