// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cctype>

#include "loader/sha256.h"

namespace stoch::serve {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(Sha256Hex(key));
}

std::optional<std::string> ApiKeys::Identify(std::string_view authorization) const {
  if (!required()) return "";
  constexpr std::string_view kScheme = "bearer ";
  const bool bearer = authorization.size() > kScheme.size() &&
                      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(),
                                 [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
  if (!bearer) return std::nullopt;
  const std::string digest = Sha256Hex(authorization.substr(kScheme.size()));
  bool found = false;
  for (const std::string& known : digests_) {
    found |= CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0;  // all of them, whichever it is
  }
  return found ? std::optional(digest) : std::nullopt;
}

}  // namespace stoch::serve
