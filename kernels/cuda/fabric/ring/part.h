// SPDX-License-Identifier: Apache-2.0
// The part of a RingAttention call that one device runs.
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
  std::vector<DealtRows> dealt = {};  // [sequence] the device's rows of each sequence
  DealtPass rows = {};                // the device's rows, in its scratch
  AttentionArgs args = {};            // arguments for all rows and heads of the device, over the striped cache

  RingPlaces places() const { return {cache->spec(), call->num_heads, pass->limits()}; }
};

// Makes the parts of a checked call, in the order of stripes. contexts: [part] of the parts' devices.
// Errors: InvalidInput if a device's scratch is too small.
std::vector<RingPart> MakeRingParts(const std::vector<DeviceContext*>& contexts, const RingAttentionCall& call);

// Identifies the pass whose rows (DealtPass) are in a device's scratch.
struct DealtKey {
  uint64_t upload = 0;  // CudaPass::upload: number of the upload of the pass
  const uint8_t* scratch = nullptr;
  bool operator==(const DealtKey&) const = default;
};

// Writes the rows of the pass to the scratch of every device that does not have them yet according to `known`, and
// updates it. All layers of a pass share these rows.
void DealRows(const std::vector<RingPart>& parts, std::vector<DealtKey>& known);
// Appends the keys and values of the device's rows to its cache. With kExact it also rotates the queries (RoPE) in
// place.
void AppendKeys(const RingPart& part);

}  // namespace stoch::cuda
