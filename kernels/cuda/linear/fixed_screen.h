// SPDX-License-Identifier: Apache-2.0
// Finds the largest of a row's logits without reading all of the LM head (LinearCall::only_largest).
//
// For each integer q of a weight (math/fixed_point.h) memory also holds a byte h with q = 256 h + r, and for each
// weight row the norm of its remainders r. Let a be the integers of x. By Cauchy-Schwarz, the row's sum of a * q
// differs from 256 times its sum of a * h by at most |r| |a|, and the integer sums are exact. So the bytes h, half the
// size of the head, tell which outputs can be the largest; only those are computed from the weights themselves, with
// the bits that LaunchFixedLinear gives.
#pragma once

#include "kernels/cuda/linear/fixed_kernels.h"

namespace stoch::cuda::fixed {

// Logits of one row of x. Outputs that can be the largest are as LaunchFixedLinear gives them; each other output is a
// lower bound of its value, below the largest output.
// Requires: args.rows is 1, x's norm is in args.w.screen, args.out.add is false.
void LaunchScreened(DeviceContext& ctx, const FixedArgs& args);

}  // namespace stoch::cuda::fixed
