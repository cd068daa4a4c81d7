// SPDX-License-Identifier: Apache-2.0
// The keys that clients name themselves by.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stoch::serve {

// Threads: safe. Keys are kept as their digests only.
class ApiKeys {
 public:
  // keys: not empty strings. Without any, everybody is the same principal "".
  explicit ApiKeys(const std::vector<std::string>& keys);

  bool required() const { return !digests_.empty(); }
  // authorization: the header's value, "Bearer KEY"; the name of the scheme is written in any case.
  // Returns: the sha256 of the key in hex, "" if none is required; nothing if it is no key of this server. The time that
  // it takes tells nothing of the keys but how many they are.
  std::optional<std::string> Identify(std::string_view authorization) const;

 private:
  std::vector<std::string> digests_;
};

}  // namespace stoch::serve
