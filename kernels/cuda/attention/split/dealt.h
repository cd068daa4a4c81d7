// SPDX-License-Identifier: Apache-2.0
// Arguments and launchers for dealt rows: rows whose positions are distributed over devices (../dealt.h). Private to
// this folder.
#pragma once

#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/split/split.h"

namespace stoch::cuda {

// Arguments of a launch over dealt rows. attention.pass.pages and max_pages describe the whole pass, not only this
// device's positions; of the scratch, the kernels use scores and stride alone.
struct DealtArgs : SplitArgs, DealtRowsView {
  DilatedPairs pairs;
};

// scores.cu, values.cu: q k and p v of dealt rows whose route is AttentionRoute::kDealtSplit.
void LaunchSplitScores(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args);
void LaunchSplitValues(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args);

}  // namespace stoch::cuda
