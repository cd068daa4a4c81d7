// SPDX-License-Identifier: Apache-2.0
// sc_cost for people: average stream lengths, shares, cycles.
#pragma once

#include <string>

#include "research/cost.h"
#include "research/energy/energy.h"
#include "research/energy/hardware_report.h"

namespace stoch::cli {

// "128.00", or "-" where it is absent.
std::string LengthText(const std::optional<double>& average);
// Several lines, each with its line break.
std::string CostText(const ScCost& cost);
std::string EnergyText(const EnergyReport& report);
std::string HardwareText(const HardwareReport& report);

}  // namespace stoch::cli
