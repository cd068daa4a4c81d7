// SPDX-License-Identifier: Apache-2.0
// What some families do to the results of linears, in place: biases, and norms of the heads of q and k (AddBiasCall and
// NormHeadsCall in kernels/backend.h).
#pragma once

#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Errors: InvalidInput for operands that break the call's requirements, before any work.
void AddBias(Context& context, const AddBiasCall& call);
void NormHeads(Context& context, const NormHeadsCall& call);

}  // namespace stoch::cpu
