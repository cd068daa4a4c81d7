// SPDX-License-Identifier: Apache-2.0
// A call of attention as its plans and its kernels take it, on one device.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/attention/plan.h"

namespace stoch::cuda {

// The shape of a layer for a call of so many heads, which may read some of the cache's KV heads.
AttentionShape ShapeOf(const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads);

// Arguments of kernels for a call whose rows are those of `pass`. Requires: a call that was checked.
AttentionArgs ArgsOf(DeviceContext& ctx, const AttentionCall& call, const CudaKvCache& cache, const PassView& pass);

}  // namespace stoch::cuda
