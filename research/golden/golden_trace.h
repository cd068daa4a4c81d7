// SPDX-License-Identifier: Apache-2.0
// Recorded traces: calls and the groups, averages and cycles that follow.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace stoch {

// What differs, or "". Counts what it compares.
std::string CheckTraceGolden(const nlohmann::json& fields, int64_t* compared);

}  // namespace stoch
