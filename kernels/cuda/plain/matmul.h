// SPDX-License-Identifier: Apache-2.0
// The SC product of two float operands of any strides, for any configuration.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Backend::ScMatmul: quantizes both operands on the fly and looks up every product in the count table (number
// formats: multiplies codes). The most general kernel, not the fastest; linears have kernels of their own.
// Errors: InvalidInput for shapes, devices or an output that do not fit, and for operators that need another rank
// (per_head: 3-D; chunk_d: 2-D). NaN or infinity in an operand sets the error flag.
// Async: on ctx.stream, with scratch from ctx.workspace; waits only if the operator has faults, adders made
// of gates or narrow registers.
void LaunchScMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperator& op,
                    const TensorView& out);

}  // namespace stoch::cuda
