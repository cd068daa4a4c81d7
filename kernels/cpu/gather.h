// Exchange between logical devices (GatherCall in kernels/backend.h).
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

void Gather(Context& context, const GatherCall& call);

}  // namespace stoch::cpu
