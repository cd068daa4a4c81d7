// SPDX-License-Identifier: Apache-2.0
// SC attention with stream lengths of rows, integers, multiplier tables or gates whose signs lie in the table.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// RoPE, the append and attention of every row of a pass, AttentionMode::kPerToken, dilated where there are pairs. `recording`: the lengths of the
// sequences are not known then, and a call of ScNormalise::kCall is the whole pass.
// Bits: docs/research.md, as on the CPU.
void LaunchMixedAttention(DeviceContext& ctx, const AttentionArgs& args, const OpSite& site,
                          const MixedProducts& products, const DilatedPairs& pairs, const CudaPass& pass,
                          bool recording);

}  // namespace stoch::cuda
