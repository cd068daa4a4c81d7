// SPDX-License-Identifier: Apache-2.0
// Tells users why products run in the plain kernels of a GPU (kernels/cuda/plain).
#pragma once

#include <string>

#include "kernels/backend.h"

namespace stoch {

// Names the first setting that no fast kernel takes, as "fault_product=0.01" or "smooth"; "" if none is known.
std::string PlainReason(const LinearSpec& spec);
// Attention: the reason of the first layer that has one.
std::string PlainReason(const KvCacheSpec& spec);

// ", because REASON", or nothing.
inline std::string BecauseOf(const std::string& reason) { return reason.empty() ? "" : ", because " + reason; }

}  // namespace stoch
