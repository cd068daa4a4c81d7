// SPDX-License-Identifier: Apache-2.0
// The shape that plans of attention go by, of a cache on a device.
#pragma once

#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/attention_plan.h"

namespace stoch::cuda {

// As MakeAttentionShape, with the operators' traits that are kept with their tables. num_kv_heads: of the call, which may
// read some of the cache's.
AttentionShape ShapeOf(DeviceContext& ctx, const CudaKvCache& cache, int layer, int num_heads, int num_kv_heads);

}  // namespace stoch::cuda
