// SPDX-License-Identifier: Apache-2.0
// What GPUs have no kernel for, in one place: the plain wing takes entries away from here.
#pragma once

#include <string>

#include "kernels/sc/sc_config.h"

namespace stoch {

// The setting of a product that no GPU kernel takes, "" where there is none.
inline std::string WhyNoGpuKernel(const ScConfig& config) {
  if (config.arith != ScArith::kSc) return "";
  switch (config.gate) {
    case ScGate::kEnabled:
    case ScGate::kAnd:
    case ScGate::kXnor:
    case ScGate::kTable: return "";
    case ScGate::kCounts: return "gate=counts";
  }
  return "";
}

}  // namespace stoch
