// SPDX-License-Identifier: Apache-2.0
// Measures how fast a GPU reads its memory, the floor under every decode step.
#pragma once

#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Bytes per second of streaming reads over a buffer several times the L2 (1 GiB, or a quarter of what
// is free). Waits.
double MeasureReadBandwidth(DeviceContext& ctx);

}  // namespace stoch::cuda
