// SPDX-License-Identifier: Apache-2.0
#include "app/options/shard.h"

#include <charconv>

#include "kernels/base/error.h"

namespace stoch::cli {

Shard ParseShard(const std::string& option, const std::string& text) {
  Shard shard;
  if (text.empty()) return shard;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, shard.index);
  bool good = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  if (good) {
    const auto second = std::from_chars(first.ptr + 1, end, shard.count);
    good = second.ec == std::errc() && second.ptr == end && shard.index < shard.count;
  }
  if (!good) throw InvalidInput(option + " " + text + ": allowed is i/n with i in 0..n-1");
  return shard;
}

}  // namespace stoch::cli
