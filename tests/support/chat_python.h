// SPDX-License-Identifier: Apache-2.0
// Tests that render chat templates are skipped where nothing here has jinja2.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace stoch::test {

// STOCH_CHAT_PYTHON: an interpreter with jinja2 other than the distribution's.
inline std::string ChatPython() {
  const char* given = std::getenv("STOCH_CHAT_PYTHON");
  return given != nullptr ? given : "/usr/bin/python3";
}

inline bool HasJinja() {
  static const bool kHas = std::system((ChatPython() + " -I -c 'import jinja2' 2>/dev/null").c_str()) == 0;
  return kHas;
}

}  // namespace stoch::test

#define STOCH_REQUIRE_JINJA()                                                                         \
  do {                                                                                                \
    if (!stoch::test::HasJinja()) {                                                                   \
      GTEST_SKIP() << stoch::test::ChatPython() << " has no jinja2 (apt-get install python3-jinja2)"; \
    }                                                                                                 \
  } while (false)
