// SPDX-License-Identifier: Apache-2.0
// Launchers of the ops of kernels/calls.h on one GPU, one per op. Each is defined in the folder of its kind:
// linear/linear.cc, attention/attention.cc, families/heads.cu, families/router.cu, families/experts.cu,
// sampling/compare.cu.
#pragma once

#include "kernels/calls.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Requires: the device of ctx is current, and the call's operands are on that device.
// Errors: InvalidInput, naming the site, if operands break the call's requirements; nothing has been launched then.
// Async: on ctx.stream; scratch comes from ctx.workspace.
#define OP(Op) void Launch##Op(DeviceContext& ctx, const Op##Call& call);
STOCH_FOR_EACH_OP(OP)
#undef OP

}  // namespace stoch::cuda
