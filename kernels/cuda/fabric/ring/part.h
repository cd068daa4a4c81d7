// SPDX-License-Identifier: Apache-2.0
// One device's part of a RingAttention call.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/fabric/ring/places.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/ring.h"

namespace stoch::cuda {

struct RingPart {
  DeviceContext* ctx = nullptr;
  const AttentionCall* call = nullptr;
  const CudaKvCache* cache = nullptr;
  const CudaPass* pass = nullptr;
  uint8_t* scratch = nullptr;
  Stripe stripe;
  std::vector<DealtRows> dealt = {};  // by sequence
  DealtPass rows = {};                // of the scratch
  AttentionArgs args = {};            // of all rows and heads that the device owns, over the striped cache

  RingPlaces places() const { return {cache->spec(), call->num_heads, pass->limits()}; }
};

// The parts of a checked call, in the order of stripes. contexts: of their devices.
// Errors: InvalidInput for scratch that is too small.
std::vector<RingPart> MakeRingParts(const std::vector<DeviceContext*>& contexts, const RingAttentionCall& call);

// Which pass a device's scratch has dealt rows of.
struct DealtKey {
  uint64_t upload = 0;  // CudaPass::upload
  const uint8_t* scratch = nullptr;
  bool operator==(const DealtKey&) const = default;
};

// Writes the rows of the pass to the scratch of every device that does not have them yet: layers share a pass.
void DealRows(const std::vector<RingPart>& parts, std::vector<DealtKey>& known);
// Keys and values of the device's rows go to its cache; kExact: and the queries are rotated.
void AppendKeys(const RingPart& part);

}  // namespace stoch::cuda
