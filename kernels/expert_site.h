// SPDX-License-Identifier: Apache-2.0
// The name by which observers are shown the rows of one expert (OpObserver::OnLinear): "gate_up_proj:u3".
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace stoch {

inline std::string ExpertSiteName(std::string_view op, int64_t expert) {
  return std::string(op) + ":u" + std::to_string(expert);
}

// "gate_up_proj" and 3, or -1 of a name without an expert.
struct ExpertSite {
  std::string_view op;
  int64_t expert = -1;
};
inline ExpertSite ParseExpertSite(std::string_view name) {
  const size_t at = name.find(":u");
  if (at == std::string_view::npos) return {name};
  ExpertSite site{name.substr(0, at)};
  const std::string_view number = name.substr(at + 2);
  std::from_chars(number.data(), number.data() + number.size(), site.expert);
  return site;
}

}  // namespace stoch
