// SPDX-License-Identifier: Apache-2.0
// RingAttention of GPUs (kernels/ring.h).
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

// State that the devices of a ring keep from call to call.
struct RingGroup {
  // Requires: contexts that outlive this, on distinct devices; `direct`: all reach each other.
  RingGroup(const std::vector<DeviceContext*>& contexts, bool direct)
      : ring(contexts, direct), query(contexts, direct) {}
  RingExchange ring;
  QueryExchange query;
  std::vector<DealtKey> dealt;
};

// kAuto: queries go to the keys where no sequence of the pass has more than a few rows, by codes; otherwise keys and
// values go the ring. contexts: of the parts' devices.
// Errors: those of RingAttention; InvalidInput for RingRoute::kQuery in kExact.
void RunRingAttention(const std::vector<DeviceContext*>& contexts, RingGroup& group, const RingAttentionCall& call,
                      RingProbe* probe);

}  // namespace stoch::cuda
