// SPDX-License-Identifier: Apache-2.0
// Codes of an operand as the words that a memory holds, whose bits flip.
#pragma once

#include <cstdint>

#include "kernels/sc/hardware/binomial.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

// The number that a code byte of an operator stands for, without a zero point; and its code byte.
int LevelOfCode(const ScOperator& op, uint8_t code);
uint8_t CodeOfLevel(const ScOperator& op, int level);

// Faults of stored codes at one rate. Threads: safe.
class ScWordFaults {
 public:
  // rate 0: none.
  ScWordFaults(const ScOperator& op, double rate);

  bool any() const { return rate_ > 0; }
  // The level that is read in place of another, by the draws of `column` under `key`. Words that stand for no level read as the nearest one.
  // Requires: any().
  int Read(int level, uint64_t key, uint64_t column) const;

 private:
  enum class Form : uint8_t { kSignMagnitude, kOffset, kUnsigned, kTwosComplement };
  static Form FormOf(const ScOperator& op);

  double rate_;
  Form form_;
  int q_max_;
  int bits_;
  BinomialLine line_;
};

}  // namespace stoch
