// SPDX-License-Identifier: Apache-2.0
// The steps between the products of rows whose queries go to the keys, and products for shapes that split/ does not take.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/split/dealt.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"

namespace stoch::cuda {

// Fills queries[0, rows) with the rows of `pass`, in its order. Every device makes its own copy.
void LaunchListQueries(DeviceContext& ctx, const PassView& pass, int64_t rows, const StripeView& stripe,
                       DealtQuery* queries);

// Each works on the rows of `args` and the device's own positions; most: local positions that a row sees, at most.
// Scores of own positions, for every shape; LaunchDealtScores gives the same.
void LaunchQueryScores(DeviceContext& ctx, const DealtArgs& args, int64_t most);
// From the largest score of all devices: scores become exponentials, the own lanes their sums.
void LaunchQueryLanes(DeviceContext& ctx, const DealtArgs& args);
// From the lanes of all devices: exponentials become what is quantized, and weight_max, which is 0 before, the largest.
void LaunchQueryWeights(DeviceContext& ctx, const DealtArgs& args, int64_t most);
// From the largest weight of all devices: counts of p v, for every shape; LaunchDealtValues gives the same.
void LaunchQueryValues(DeviceContext& ctx, const DealtArgs& args, int64_t most);
// From the counts of all devices: attention.out of the rows that the device owns.
void LaunchQueryOutput(DeviceContext& ctx, const DealtArgs& args);

}  // namespace stoch::cuda
