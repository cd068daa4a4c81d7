// SPDX-License-Identifier: Apache-2.0
// Codes of an operand as the words that a memory holds, whose bits flip.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/quantize.h"
#include "kernels/sc/hardware/binomial.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

// The number that a code byte of an operator stands for, without a zero point; and its code byte.
STOCH_HD int LevelOfCode(ScCode form, int q_max, uint8_t code) {
  switch (form) {
    case ScCode::kSignMagnitude: return (code & 0x80) != 0 ? -(code & 0x7f) : code;
    case ScCode::kOffset: return code - q_max;
    case ScCode::kAsymmetric: break;
  }
  return code;
}
STOCH_HD uint8_t CodeOfLevel(ScCode form, int q_max, int level) {
  switch (form) {
    case ScCode::kSignMagnitude: return SignMagnitude(level);
    case ScCode::kOffset: return static_cast<uint8_t>(level + q_max);
    case ScCode::kAsymmetric: break;
  }
  return static_cast<uint8_t>(level);
}
inline int LevelOfCode(const ScOperator& op, uint8_t code) { return LevelOfCode(op.code, op.q_max, code); }
inline uint8_t CodeOfLevel(const ScOperator& op, int level) { return CodeOfLevel(op.code, op.q_max, level); }

// How a memory holds a level.
enum class ScWordForm : uint8_t { kSignMagnitude, kOffset, kUnsigned, kTwosComplement };

// Faults of stored codes at one rate, without memory of their own, so that kernels take them.
struct ScWordFaultView {
  ScWordForm form = ScWordForm::kSignMagnitude;
  ScCode code = ScCode::kSignMagnitude;
  int q_max = 0;
  int bits = 0;  // bits of a word; 0: none ever flips
  BinomialLineView flips;

  STOCH_HD bool any() const { return bits > 0; }
  // The level that is read in place of another, by the draws of `column` under `key`. Words that stand for no level read
  // as the nearest one. Requires: any().
  STOCH_HD int Read(int level, uint64_t key, uint64_t column) const {
    const auto flipped = static_cast<int>(FlippedBits(flips, bits, key, column));
    if (flipped == 0) return level;
    const int sign_bit = 1 << (bits - 1);
    switch (form) {
      case ScWordForm::kSignMagnitude: {
        const int word = (level < 0 ? -level | sign_bit : level) ^ flipped;
        const int magnitude = word & (sign_bit - 1);
        return (word & sign_bit) != 0 ? -magnitude : magnitude;
      }
      case ScWordForm::kOffset: {
        const int word = (level + q_max) ^ flipped;
        return (word < 2 * q_max ? word : 2 * q_max) - q_max;
      }
      case ScWordForm::kUnsigned: return level ^ flipped;
      case ScWordForm::kTwosComplement: break;
    }
    const int word = (level & (2 * sign_bit - 1)) ^ flipped;
    const int value = (word & sign_bit) != 0 ? word - 2 * sign_bit : word;
    return value > -q_max ? value : -q_max;
  }
  // The code byte that is read in place of another; *level: the number that it stands for.
  STOCH_HD uint8_t ReadCode(uint8_t stored, uint64_t key, uint64_t column, int* level) const {
    *level = Read(LevelOfCode(code, q_max, stored), key, column);
    return CodeOfLevel(code, q_max, *level);
  }
};

// Owns the memory of ScWordFaultView. Threads: safe.
class ScWordFaults {
 public:
  // rate 0: none.
  ScWordFaults(const ScOperator& op, double rate);

  bool any() const { return rate_ > 0; }
  ScWordFaultView view() const;
  const BinomialLine& flips() const { return line_; }
  // As ScWordFaultView. Requires: any().
  int Read(int level, uint64_t key, uint64_t column) const { return view().Read(level, key, column); }

 private:
  double rate_;
  ScWordForm form_;
  ScCode code_;
  int q_max_;
  int bits_;
  BinomialLine line_;
};

}  // namespace stoch
