// SPDX-License-Identifier: Apache-2.0
// Measures the read bandwidth of a GPU's memory, which bounds every decode step from below.
#pragma once

#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Read bandwidth in bytes per second: streaming reads over a buffer much larger than the L2 (1 GiB, or a quarter of the
// free memory if that is less). Async: waits for the device.
double MeasureReadBandwidth(DeviceContext& ctx);

}  // namespace stoch::cuda
