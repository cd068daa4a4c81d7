// SPDX-License-Identifier: Apache-2.0
// Figures of `stoch profile`: errors of layers and operators as colours, and over stream length.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/report/profile.h"

namespace stoch::cli {

// Names of files and their SVG: heat-N.svg for every configuration, from 1, and error-over-length.svg.
// Bits:   the same texts for the same report.
std::vector<std::pair<std::string, std::string>> ProfilePlots(const ProfileReport& report);

}  // namespace stoch::cli
