// SPDX-License-Identifier: Apache-2.0
// Attention on the GPU: RoPE, the KV append and causal attention in every mode.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// AttentionCall of backend.h. Which kernels run: rows of short sequences, and every row while a graph is recorded: one
// block or cluster per row and head, lengths read from device memory (row.cu, exact.cu, half_rows.cu); tiles of long
// sequences: binary tensor cores for SC (tile.h), half ones for fp16.
// Bits:   all SC and exact kernels give the same, so the choice is invisible.
// Errors: InvalidInput for operands that do not fit the cache or the pass, naming the site.
// Async:  on ctx.stream; scratch from ctx.workspace.
void LaunchAttention(DeviceContext& ctx, const AttentionCall& call);

}  // namespace stoch::cuda
