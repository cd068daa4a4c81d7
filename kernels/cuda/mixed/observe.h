// SPDX-License-Identifier: Apache-2.0
// What rows ran at, for Backend::ObserveLengths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/cuda/weights/mixed.h"

namespace stoch::cuda {

// [rows][slots.per_row], cycles. Waits for the device.
std::vector<int> ReadLengths(DeviceContext& ctx, const MixedPart& part, const RowSlots& slots, int64_t rows);
// Shows the observer of `ctx` the lengths of `rows` rows. Waits for the device.
void ShowLengths(DeviceContext& ctx, const OpSite& site, const MixedPart& part, const RowSlots& slots, int64_t rows,
                 const std::string& op);

}  // namespace stoch::cuda
