// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/random_id.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <stdexcept>

namespace stoch::serve {

std::string RandomId() {
  std::array<unsigned char, 16> bytes{};
  ssize_t given = 0;
  // So few bytes come at once or not at all; a signal may come first while the system gathers its first ones.
  do {
    given = getrandom(bytes.data(), bytes.size(), 0);
  } while (given < 0 && errno == EINTR);
  if (given != static_cast<ssize_t>(bytes.size())) throw std::runtime_error("the system gives no random numbers");
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace stoch::serve
