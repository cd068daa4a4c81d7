// SPDX-License-Identifier: Apache-2.0
// Classes of context lengths: passes of one class run the same attention kernels.
#pragma once

#include <cstdint>

namespace stoch {

inline constexpr int64_t kShortContext = 256;
inline constexpr int64_t kMiddleContext = 1024;
inline constexpr int64_t kLongContext = 6144;
inline constexpr int64_t kDeepContext = 10240;
inline constexpr int64_t kFarContext = 32768;

// The class of a pass whose longest context has `length` positions; a part of the key of Backend::RunGraph.
constexpr int ContextBucket(int64_t length) {
  return length <= kShortContext    ? 0
         : length <= kMiddleContext ? 1
         : length <= kLongContext   ? 2
         : length <= kDeepContext   ? 3
         : length <= kFarContext    ? 4
                                    : 5;
}
// The longest context of a class, where none is longer than `limit`.
constexpr int64_t LongestOfBucket(int bucket, int64_t limit) {
  const int64_t longest = bucket == 0   ? kShortContext
                          : bucket == 1 ? kMiddleContext
                          : bucket == 2 ? kLongContext
                          : bucket == 3 ? kDeepContext
                          : bucket == 4 ? kFarContext
                                        : limit;
  return longest < limit ? longest : limit;
}

}  // namespace stoch
