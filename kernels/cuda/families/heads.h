// SPDX-License-Identifier: Apache-2.0
// Biases, and norms of the heads of q and k, in place (AddBiasCall and NormHeadsCall in kernels/backend.h).
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Requires: a checked call (kernels/family_check.h) whose operands are on the context's device.
void LaunchAddBias(DeviceContext& ctx, const AddBiasCall& call);
void LaunchNormHeads(DeviceContext& ctx, const NormHeadsCall& call);

}  // namespace stoch::cuda
