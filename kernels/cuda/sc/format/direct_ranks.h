// Operators whose ranks follow from the level by a formula, so that a kernel needs no table of them.
#pragma once

#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// What: whether DirectRanks (sc/tensor_core/operand.cuh) gives the operator's ranks.
bool RanksAreDirect(const ScOperator& op);

}  // namespace stoch::cuda
