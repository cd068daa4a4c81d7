// SPDX-License-Identifier: Apache-2.0
// What GPUs have no kernel for, in one place: the plain wing takes entries away from here.
#pragma once

#include <string>

#include "kernels/sc/sc_config.h"

namespace stoch {

// The setting of a product that no GPU kernel takes, "" where there is none.
inline std::string WhyNoGpuKernel(const ScConfig& config) {
  if (HasFaults(config)) {
    const std::string name = config.fault_product > 0      ? "fault_product"
                             : config.fault_weight > 0     ? "fault_weight"
                             : config.fault_activation > 0 ? "fault_activation"
                                                           : "fault_acc";
    return name + " above 0";
  }
  if (config.adder != ScAdder::kCounter) return "an adder of gates";
  if (config.acc_bits > 0) return "acc_bits=" + std::to_string(config.acc_bits);
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
