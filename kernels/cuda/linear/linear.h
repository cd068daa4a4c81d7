// SPDX-License-Identifier: Apache-2.0
// Backend::Linear on one GPU.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// LinearCall of backend.h: weights of one precision and operator share the prologue and, for SC, its codes.
// Errors: InvalidInput for operands that break the call's requirements, naming the site.
// Async:  on ctx.stream; scratch from ctx.workspace.
void LaunchLinear(DeviceContext& ctx, const LinearCall& call);

}  // namespace stoch::cuda
