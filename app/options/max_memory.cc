// SPDX-License-Identifier: Apache-2.0
#include "app/options/max_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 60;

int64_t ParseBytes(std::string_view text, std::string_view whole) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"B", 1},
                                                                           {"kB", 1e3},
                                                                           {"MB", 1e6},
                                                                           {"GB", 1e9},
                                                                           {"TB", 1e12},
                                                                           {"KiB", 1024.0},
                                                                           {"MiB", 1048576.0},
                                                                           {"GiB", 1073741824.0},
                                                                           {"TiB", 1099511627776.0}}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && unit == name && value >= 0 && value * factor < static_cast<double>(kMaxBytes)) {
      return static_cast<int64_t>(value * factor);
    }
  }
  throw InvalidInput(fmt::format("--max-memory {}: expected a size such as 60GiB, got '{}'", whole, text));
}

}  // namespace

std::map<int, int64_t> ParseMaxMemory(std::string_view text) {
  std::map<int, int64_t> bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest = entry.size() < rest.size() ? rest.substr(entry.size() + 1) : std::string_view();
    const size_t equals = entry.find('=');
    int index = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + std::min(equals, entry.size()), index);
    if (equals == std::string_view::npos || error != std::errc() || end != entry.data() + equals || index < 0 ||
        bytes.count(index) > 0) {
      throw InvalidInput(fmt::format("--max-memory {}: expected DEVICE=SIZE once per device, got '{}'", text, entry));
    }
    bytes[index] = ParseBytes(entry.substr(equals + 1), text);
  }
  return bytes;
}

}  // namespace stoch::cli
