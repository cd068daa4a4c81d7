// SPDX-License-Identifier: Apache-2.0
// The kernel that quantizes some channels of a slab, smoothed, as side b.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"
#include "kernels/cuda/weights/uploader.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// Quantizes the channels of `slab` (rows `stride` elements apart) into `to`, whose pointers are written through.
// channels null: all in order; smooth null: 1. Lowers first_bad to the first row with NaN or infinity.
// Requires: scopes of several rows (group > 1) lie within the slab.
void LaunchPackMixed(DeviceContext& ctx, const WeightSlab& slab, int64_t stride, const ScOperator& op, int64_t group,
                     const int32_t* channels, const float* smooth, const ScWeightView& to, int64_t* first_bad);

}  // namespace stoch::cuda
