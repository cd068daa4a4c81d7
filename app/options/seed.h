// SPDX-License-Identifier: Apache-2.0
// Seeds as requests and Python take them: any number of 64 bits, signed or not.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace stoch::cli {

// A negative seed has the bits of two's complement: -1 is 18446744073709551615. Versions of CLI11 differ in whether they read
// one as an unsigned number.
inline CLI::Validator SignedSeed() {
  return {[](std::string& text) {
            if (text.empty() || text.front() != '-') return std::string();
            int64_t seed = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, seed);
            if (error != std::errc() || stop != end) return "seed " + text + ": allowed is -2^63..2^64-1";
            text = std::to_string(static_cast<uint64_t>(seed));
            return std::string();
          },
          ""};
}

}  // namespace stoch::cli
