// SPDX-License-Identifier: Apache-2.0
// RingAttention of GPUs (kernels/ring.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/ring/exchange.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Of each device: what RingAttention's scratch has, for passes within the limits; and what it takes of the workspace, where
// max_rows is that of the rows that the device owns.
int64_t RingPlaceBytes(const KvCacheSpec& spec, const PassLimits& limits);
int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits);

// By the ring, whatever the rows: queries stay where they are.
// contexts: of the parts' devices. Errors: those of RingAttention; InvalidInput for RingRoute::kQuery.
void RunRingAttention(const std::vector<DeviceContext*>& contexts, RingExchange& exchange,
                      const RingAttentionCall& call, RingProbe* probe);

}  // namespace stoch::cuda
