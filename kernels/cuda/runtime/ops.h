// SPDX-License-Identifier: Apache-2.0
// The ops of kernels/calls.h on one GPU: one launcher each, in the folder of its kind (linear/linear.cc,
// attention/attention.cc, families/heads.cu, families/experts.cu,
// sampling/compare.cu).
#pragma once

#include "kernels/calls.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Requires: the context's device is current, and the call's operands are on it.
// Errors:   InvalidInput for operands that break the call's requirements, naming the site, before any launch.
// Async:    on ctx.stream; scratch from ctx.workspace.
#define OP(Op) void Launch##Op(DeviceContext& ctx, const Op##Call& call);
STOCH_FOR_EACH_OP(OP)
#undef OP

}  // namespace stoch::cuda
