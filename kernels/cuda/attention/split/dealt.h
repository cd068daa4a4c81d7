// SPDX-License-Identifier: Apache-2.0
// Dealt rows (../dealt.h) for the kernels of this folder. Private to it.
#pragma once

#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/split/split.h"

namespace stoch::cuda {

// attention.pass.pages and max_pages are those of the whole pass; of the scratch, scores and stride are used.
struct DealtArgs : SplitArgs, DealtRowsView {
  DilatedPairs pairs;
};

// scores.cu, values.cu: route kDealtSplit.
void LaunchSplitScores(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args);
void LaunchSplitValues(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args);

}  // namespace stoch::cuda
