// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/words.h"

namespace stoch {
namespace {

ScWordForm FormOf(const ScOperator& op) {
  const ScConfig& config = op.config;
  if (IntBits(config.arith) > 0) return ScWordForm::kTwosComplement;
  if (op.code == ScCode::kAsymmetric) return ScWordForm::kUnsigned;
  if (op.code == ScCode::kSignMagnitude) return ScWordForm::kSignMagnitude;
  switch (config.gate) {
    case ScGate::kTable:
      return config.table_code == ScTableCode::kSignMagnitude ? ScWordForm::kSignMagnitude
                                                              : ScWordForm::kTwosComplement;
    case ScGate::kCounts:  // magnitudes may be kept as the counts of their signed products
      return config.count_table.get()->levels == 1 << config.sc_prec ? ScWordForm::kOffset : ScWordForm::kSignMagnitude;
    case ScGate::kEnabled:
    case ScGate::kAnd:
    case ScGate::kXnor: break;
  }
  return ScWordForm::kOffset;
}

}  // namespace

ScWordFaults::ScWordFaults(const ScOperator& op, double rate)
    : rate_(rate),
      form_(FormOf(op)),
      code_(op.code),
      q_max_(op.q_max),
      bits_(IntBits(op.config.arith) > 0 ? IntBits(op.config.arith) : op.config.sc_prec) {
  if (any()) line_ = MakeBinomialLine(bits_, rate);
}

ScWordFaultView ScWordFaults::view() const { return {form_, code_, q_max_, any() ? bits_ : 0, line_.view()}; }

}  // namespace stoch
