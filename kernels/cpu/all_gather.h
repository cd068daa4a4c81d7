// SPDX-License-Identifier: Apache-2.0
// Exchange between logical devices (AllGatherCall in kernels/calls.h).
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

void AllGather(Context& context, const AllGatherCall& call);

}  // namespace stoch::cpu
