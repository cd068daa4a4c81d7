// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/gather.h"

#include <algorithm>

#include "kernels/plan/divide_up.h"

namespace stoch {

GatherLaunch PlanGather(const GatherShape& shape) {
  const int64_t elements = shape.rows * shape.widest;
  const int64_t packet_blocks = std::max<int64_t>(1, DivideUp(elements, 4 * kPacketThreads));
  if (shape.is_recorded && shape.has_vectors && shape.all_receive && packet_blocks <= kMaxGatherBlocks) {
    return {GatherRoute::kPackets, static_cast<int>(packet_blocks)};
  }
  return {shape.has_vectors ? GatherRoute::kVectors : GatherRoute::kElements,
          static_cast<int>(std::clamp<int64_t>(DivideUp(elements, kGatherBlockElements), 1, kMaxGatherBlocks))};
}

}  // namespace stoch
