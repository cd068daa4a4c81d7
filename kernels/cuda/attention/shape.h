// SPDX-License-Identifier: Apache-2.0
// Shape and kernel arguments of one attention call on one device, as plans and kernels take them.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/attention/plan.h"

namespace stoch::cuda {

// Shape of a layer (heads, head_dim, mode, operators) for a call with num_heads query heads that reads num_kv_heads KV
// heads of the cache.
AttentionShape ShapeOf(const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads);

// Kernel arguments of `call`: `pass` gives the rows, `cache` the layer's view. Requires: a call that CheckAttention has
// accepted.
AttentionArgs ArgsOf(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const PassView& pass);

}  // namespace stoch::cuda
