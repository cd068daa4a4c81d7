// SPDX-License-Identifier: Apache-2.0
// Titles of the axes of sweeps, with their units.
#pragma once

#include <string>

#include "tools/stoch/plot/chart.h"

namespace stoch::cli {

// The title of a parameter or a metric; that of one operator or layer has its name in front. Others are their names.
std::string TitleOf(const std::string& name);

// Energies in the unit with the largest prefix that leaves one of them at 1 or more: nJ, uJ, mJ or J in place of pJ.
void UseEnergyPrefix(Chart* chart);

}  // namespace stoch::cli
