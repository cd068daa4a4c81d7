// SPDX-License-Identifier: Apache-2.0
// RingAttention (kernels/ring.h) on GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/fabric/ring/exchange.h"
#include "kernels/cuda/fabric/ring/part.h"
#include "kernels/cuda/fabric/ring/query_exchange.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// State that the devices of a ring keep from call to call: exchanges of keys and of queries, and which pass each device
// has dealt.
struct RingGroup {
  // Requires: contexts that outlive the object, on distinct devices. direct: every device reaches every other device's
  // memory.
  RingGroup(const std::vector<DeviceContext*>& contexts, bool direct)
      : ring(contexts, direct), query(contexts, direct) {}
  RingExchange ring;
  QueryExchange query;
  std::vector<DealtKey> dealt;
};

// Runs one RingAttentionCall. With RingRoute::kAuto, queries go to the devices that have the keys if no sequence of the
// pass has more than kQueryRows rows and the cache holds codes; otherwise keys and values go around the ring. contexts:
// [part] of the parts' devices.
// Errors: those of RingAttention; InvalidInput for RingRoute::kQuery in kExact.
void RunRingAttention(const std::vector<DeviceContext*>& contexts, RingGroup& group, const RingAttentionCall& call,
                      RingProbe* probe);

}  // namespace stoch::cuda
