// SPDX-License-Identifier: Apache-2.0
// Settings of a product that GPUs have no kernel for, in one place: a new one is added here until the plain kernels
// (kernels/cuda/plain) take it.
#pragma once

#include <string>

#include "kernels/sc/sc_config.h"

namespace stoch {

// The setting of a product that no GPU kernel takes; "" if there is none.
inline std::string WhyNoGpuKernel(const ScConfig& config) {
  if (config.arith != ScArith::kSc) return "";
  switch (config.gate) {
    case ScGate::kEnabled:
    case ScGate::kAnd:
    case ScGate::kXnor:
    case ScGate::kTable:
    case ScGate::kCounts: return "";
  }
  return "";
}

}  // namespace stoch
