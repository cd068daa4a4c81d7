// SPDX-License-Identifier: Apache-2.0
// The SC product of two float operands of any strides, for any configuration (Backend::ScMatmul).
#pragma once

#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Errors: InvalidInput for shapes, devices or an output that do not fit, and for operators that need another rank
//         (per_head: 3-D; chunk_d: 2-D). NaN or infinity is reported to context.finite.
void ScMatmul(Context& context, const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out);

}  // namespace stoch::cpu
