// SPDX-License-Identifier: Apache-2.0
// The product of two host matrices by a backend, for recorded cases.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"
#include "research/reference.h"

namespace stoch {

// y = a @ b^T. `extras` null: ScMatmul; lengths as ScMixedMatmul.
std::vector<float> ProductOnBackend(Backend& backend, const HostMatrix& a, const HostMatrix& b, const ScConfig& config,
                                    const ScExtras* extras, std::span<const int> lengths);

}  // namespace stoch
