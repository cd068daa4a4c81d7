// SPDX-License-Identifier: Apache-2.0
// --max-memory: how many bytes each device may be used for.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

namespace stoch::cli {

// "0=60GiB,1=500MB" to bytes per device index; units B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
// Errors: InvalidInput.
std::map<int, int64_t> ParseMaxMemory(std::string_view text);

}  // namespace stoch::cli
