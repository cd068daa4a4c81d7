// SPDX-License-Identifier: Apache-2.0
#include "loader/near_name.h"

#include <algorithm>
#include <cstddef>

namespace stoch {
namespace {

// The optimal string alignment distance.
size_t Changes(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> least(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t k = 0; k <= b.size(); ++k) {
      if (i == 0 || k == 0) {
        least[i][k] = i + k;
        continue;
      }
      const size_t other = a[i - 1] == b[k - 1] ? 0 : 1;
      least[i][k] = std::min({least[i - 1][k] + 1, least[i][k - 1] + 1, least[i - 1][k - 1] + other});
      const bool exchanged = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
      if (exchanged) least[i][k] = std::min(least[i][k], least[i - 2][k - 2] + 1);
    }
  }
  return least[a.size()][b.size()];
}

// Whether one is the beginning of the other. Fewer characters than these begin too much.
bool IsBeginning(std::string_view a, std::string_view b) {
  constexpr size_t kFewest = 4;
  return std::min(a.size(), b.size()) >= kFewest && (a.starts_with(b) || b.starts_with(a));
}

}  // namespace

std::string NearName(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kMaxName = 40;
  if (name.size() > kMaxName) return "";
  std::string near, begun;
  size_t least = name.size() / 4 + 1, least_begun = kMaxName;
  for (const std::string& candidate : known) {
    const size_t changes = Changes(name, candidate);
    if (changes < least) {
      least = changes;
      near = candidate;
    }
    if (changes < least_begun && IsBeginning(name, candidate)) {
      least_begun = changes;
      begun = candidate;
    }
  }
  return near.empty() ? begun : near;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& known) {
  const std::string near = NearName(name, known);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

}  // namespace stoch
