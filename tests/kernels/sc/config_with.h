// SPDX-License-Identifier: Apache-2.0
// Operators' settings in tests.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/sc/sc_parameters.h"

namespace stoch::test {

// "name=value,..." on top of `config`.
inline ScConfig With(ScConfig config, const std::string& settings) {
  for (size_t begin = 0; begin < settings.size();) {
    const size_t end = std::min(settings.find(',', begin), settings.size());
    const std::string one = settings.substr(begin, end - begin);
    const size_t equals = one.find('=');
    SetScParameter(config, one.substr(0, equals), one.substr(equals + 1));
    begin = end + 1;
  }
  return config;
}

}  // namespace stoch::test
