// SPDX-License-Identifier: Apache-2.0
// Attention of a few rows over positions that are distributed over devices: queries go to the devices that have the
// keys, and small results are exchanged.
#pragma once

#include <vector>

#include "kernels/cuda/fabric/ring/part.h"
#include "kernels/cuda/fabric/ring/query_exchange.h"

namespace stoch::cuda {

// Runs all rows of a checked call, and appends their keys and values to the caches. parts: in the order of stripes,
// after DealRows.
// Errors: LostHop, of this op or an earlier one.
void AttendByQuery(const std::vector<RingPart>& parts, QueryExchange& exchange, RingProbe* probe);

}  // namespace stoch::cuda
