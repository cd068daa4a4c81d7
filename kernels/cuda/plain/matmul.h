// SPDX-License-Identifier: Apache-2.0
// The SC product of two float operands of any strides, for any configuration.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Backend::ScMatmul: both operands are quantized on the fly, every product is looked up in the 16-bit count table. The
// widest kernel, not the fastest: linears have their own (linear.h).
// Errors: InvalidInput for shapes, devices or an output that do not fit, and for operators that need another rank
//         (per_head: 3-D; chunk_d: 2-D). NaN or infinity goes to the error flag.
// Async:  on ctx.stream; scratch from ctx.workspace.
void LaunchScMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperator& op,
                    const TensorView& out);

}  // namespace stoch::cuda
