// SPDX-License-Identifier: Apache-2.0
// The integer sums behind an SC product, read from the operator's table one product at a time.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace stoch::python {

// The accumulators of a @ b^T before the gain.
// Shapes:   a F32 [n, d] or [batch, n, d], b F32 [m, d] or [batch, m, d], dense, on the host; sums [batch, n, chunks, m].
// Requires: `cpu` quantizes; it is a CPU backend.
// Errors:   InvalidInput for shapes that do not fit, as Backend::ScMatmul.
// Bits:     the integers of every kernel; made without one, so that kernels can be held against it.
void SumCounts(Backend& cpu, const TensorView& a, const TensorView& b, const ScOperator& op, std::span<int32_t> sums);

}  // namespace stoch::python
