// The linear op: prologue, then SC or exact products with several weights (LinearCall in kernels/backend.h).
#pragma once

#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Errors: InvalidInput for operands that break LinearCall's requirements, before any work. NaN or infinity in f(x) or
//         in a result is reported to context.finite.
void Linear(Context& context, const LinearCall& call);

}  // namespace stoch::cpu
