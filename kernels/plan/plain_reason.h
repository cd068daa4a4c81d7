// SPDX-License-Identifier: Apache-2.0
// Why products go by the plain kernels of a GPU (kernels/cuda/plain), for people.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace stoch {

// Names the first setting that no fast kernel takes, as "fault_product=0.01" or "smooth"; "" where none is known.
std::string PlainReason(const LinearSpec& spec);
// Attention: the reason of the first layer that has one.
std::string PlainReason(const KvCacheSpec& spec);

// ", because REASON", or nothing.
inline std::string BecauseOf(const std::string& reason) { return reason.empty() ? "" : ", because " + reason; }

}  // namespace stoch
