// SPDX-License-Identifier: Apache-2.0
// Attention of a few rows over dealt positions: queries go to the keys, and small results are exchanged.
#pragma once

#include <vector>

#include "kernels/cuda/fabric/ring/part.h"
#include "kernels/cuda/fabric/ring/query_exchange.h"

namespace stoch::cuda {

// parts: in the order of stripes, of a checked call, and dealt. Keys and values of the pass's rows go to the caches too.
// Errors: LostHop, of this op or an earlier one.
void AttendByQuery(const std::vector<RingPart>& parts, QueryExchange& exchange, RingProbe* probe);

}  // namespace stoch::cuda
