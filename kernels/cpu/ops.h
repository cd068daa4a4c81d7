// SPDX-License-Identifier: Apache-2.0
// The ops of kernels/calls.h on the CPU: one function each, in the file of its kind (linear.cc, attention.cc, heads.cc,
// experts.cc, compare_logits.cc).
#pragma once

#include "kernels/calls.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Errors: InvalidInput for operands that break the call's requirements, before any work. NaN or infinity in an
//         activation or a result is reported to context.finite.
#define OP(Op) void Op(Context& context, const Op##Call& call);
STOCH_FOR_EACH_OP(OP)
#undef OP

}  // namespace stoch::cpu
