// SPDX-License-Identifier: Apache-2.0
// Negative log-likelihoods of windows as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/perplexity.h"

namespace stoch::cli {

// [{tokens, nll}]: predictions of a window and the sum of their negative log-likelihoods.
inline nlohmann::ordered_json NllJson(const PerplexityResult& result) {
  nlohmann::ordered_json windows = nlohmann::ordered_json::array();
  for (const WindowNll& window : result.nll_by_window) {
    windows.push_back({{"tokens", window.tokens}, {"nll", window.nll}});
  }
  return windows;
}

}  // namespace stoch::cli
