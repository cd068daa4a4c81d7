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

// The same by the row kernel of plain streams, with the table of its length for every (row, head); no wait for the host.
// Requires: TakesMixedRows; scratch of rows planned for the limits of the pass.
bool TakesMixedRows(const MixedProducts& products);
void LaunchMixedRowAttention(DeviceContext& ctx, const AttentionArgs& args, const OpSite& site,
                             const AttentionShape& shape, const MixedProducts& products, const ScTables& qk,
                             const ScTables& av, const CudaPass& pass, int32_t max_length, const ScoreSpill& spill);

}  // namespace stoch::cuda
