// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/gpu_traits.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr int64_t kLeastSharedBytes = int64_t{48} << 10;

// The number in an environment variable, or `otherwise` if it is not set. Errors: InvalidInput unless it is a number >=
// `least`.
int64_t NumberFrom(const char* variable, int64_t otherwise, int64_t least) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view value(text);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size() && number >= least) return number;
  throw InvalidInput(std::string(variable) + " = '" + text + "': allowed is a number from " + std::to_string(least) +
                     " on");
}

}  // namespace

GpuTraits LimitForTests(GpuTraits traits) {
  const int64_t shared = NumberFrom("STOCH_TEST_SHARED_BYTES", traits.max_shared_bytes, kLeastSharedBytes);
  traits.is_limited = traits.is_limited || shared < traits.max_shared_bytes;
  traits.max_shared_bytes = std::min(traits.max_shared_bytes, shared);
  if (NumberFrom("STOCH_TEST_NO_WGMMA", 0, 0) != 0) traits.has_wgmma = false;
  if (NumberFrom("STOCH_TEST_NO_BMMA", 0, 0) != 0) traits.has_binary_mma = traits.has_wgmma = false;
  if (NumberFrom("STOCH_TEST_NO_CLUSTERS", 0, 0) != 0) traits.has_clusters = false;
  traits.max_score_bytes =
      std::min(traits.max_score_bytes, NumberFrom("STOCH_TEST_SCORE_BYTES", traits.max_score_bytes, 1));
  traits.max_packed_positions = static_cast<int32_t>(std::min<int64_t>(
      traits.max_packed_positions, NumberFrom("STOCH_TEST_PACKED_POSITIONS", traits.max_packed_positions, 1)));
  traits.split_from = static_cast<int32_t>(NumberFrom("STOCH_TEST_SPLIT_FROM", 0, 0));
  traits.lookup_from = static_cast<int32_t>(NumberFrom("STOCH_TEST_LOOKUP_FROM", 0, 0));
  traits.list_from = static_cast<int32_t>(NumberFrom("STOCH_TEST_LIST_FROM", traits.list_from, 1));
  return traits;
}

}  // namespace stoch
