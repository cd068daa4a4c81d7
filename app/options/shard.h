// SPDX-License-Identifier: Apache-2.0
// "i/n": what one of n tasks does.
#pragma once

#include <cstddef>
#include <string>

namespace stoch::cli {

struct Shard {
  size_t index = 0, count = 1;
};

// "" is all of it. Errors: InvalidInput naming the option.
Shard ParseShard(const std::string& option, const std::string& text);

}  // namespace stoch::cli
