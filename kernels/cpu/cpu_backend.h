// SPDX-License-Identifier: Apache-2.0
// The CPU behind the backend interface: one pool of threads, any number of logical devices.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/backend.h"

namespace stoch::cpu {

// A backend of `devices` logical devices (they share memory and threads; using an operand on the wrong one is
// InvalidInput all the same, so that multi-device programs can be tested anywhere).
// Errors: InvalidInput for an unknown or unsupported variant or a count below 1.
std::unique_ptr<Backend> OpenBackend(int devices, int threads, std::string_view variant);

// Variants this machine can run, "scalar" first.
std::vector<std::string_view> SupportedVariants();

}  // namespace stoch::cpu
