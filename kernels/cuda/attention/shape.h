// SPDX-License-Identifier: Apache-2.0
// Shape and kernel arguments of one attention call on one device, as plans and kernels take them.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/attention/plan.h"

namespace stoch::cuda {

// Returns the shape of a layer (heads, head_dim, mode, operators) for a call with num_heads query heads over
// num_kv_heads KV heads.
AttentionShape ShapeOf(const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads);

// Returns the kernel arguments of `call`, for the rows of `pass` and the layer call.cache_layer of `cache`. Requires: a
// call that CheckAttention has accepted.
AttentionArgs ArgsOf(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const PassView& pass);

}  // namespace stoch::cuda
