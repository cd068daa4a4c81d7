// SPDX-License-Identifier: Apache-2.0
// Reports the stream lengths at which rows ran, for Backend::ObserveLengths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/weights/mixed.h"

namespace stoch::cuda {

// Stream lengths in cycles, [rows][slots.per_row]. Waits for the device.
std::vector<int> ReadLengths(DeviceContext& ctx, const MixedPart& part, const RowSlots& slots, int64_t rows);
// Copies the slots of `rows` rows to the host and tells the observer of `ctx` their stream lengths. Waits for the
// device.
// Requires: ctx.observer is set.
void ShowLengths(DeviceContext& ctx, const OpSite& site, const MixedPart& part, const RowSlots& slots, int64_t rows,
                 const std::string& op);

}  // namespace stoch::cuda
