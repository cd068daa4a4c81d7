// SPDX-License-Identifier: Apache-2.0
// The largest of a row's logits without reading all of the LM head (LinearCall::only_largest).
//
// Of each integer q of a weight (math/fixed_point.h) a byte h is kept besides: q = 256 h + r, and of every row of weights
// the norm of its r. A row's sum S of a q then lies within |r| |a| of 256 times the sum of a h, by Cauchy and Schwarz, and
// sums of integers are exact. So the bytes, half of what the head has, say which outputs can be the largest; these alone
// are computed from the weights themselves, to the same bits as ever.
#pragma once

#include "kernels/cuda/linear/fixed_kernels.h"

namespace stoch::cuda::fixed {

// The one row of x: the outputs that can be the largest as LaunchFixedLinear has them, of others something below those.
// Requires: args.x of one row, whose norm is in args.w.screen; nothing to add to.
void LaunchScreened(DeviceContext& ctx, const FixedArgs& args);

}  // namespace stoch::cuda::fixed
