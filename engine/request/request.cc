// SPDX-License-Identifier: Apache-2.0
#include "engine/request/request.h"

#include <array>
#include <cstdio>
#include <unordered_set>

#include "kernels/base/error.h"

namespace stoch {
namespace {

[[noreturn]] void Reject(const char* name, const std::string& value, const char* allowed) {
  throw InvalidInput(std::string(name) + " = " + value + ": allowed is " + allowed);
}

std::string Written(double value) {
  constexpr size_t kMost = 32;
  std::array<char, kMost> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

// Comparisons that NaN fails.
void RequireRange(const char* name, double value, double low, double high, const char* allowed) {
  if (!(value >= low && value <= high)) Reject(name, Written(value), allowed);
}

}  // namespace

void Validate(const SamplingOptions& options, int64_t vocab_size) {
  RequireRange("temperature", options.temperature, 0, 1e6, "0..1000000");
  if (options.temperature > 0 && static_cast<float>(options.temperature) == 0.0f) {
    Reject("temperature", "a number that rounds to 0", "0, or from 1.4e-45 on");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) Reject("top_p", Written(options.top_p), "above 0, up to 1");
  if (options.top_k < 0) Reject("top_k", std::to_string(options.top_k), "0 or more");
  RequireRange("min_p", options.min_p, 0, 1, "0..1");
  RequireRange("repeat_penalty", static_cast<float>(options.repeat_penalty), 1e-3f, 1e3f, "0.001..1000");
  RequireRange("presence_penalty", options.presence_penalty, -1e6, 1e6, "-1000000..1000000");
  RequireRange("frequency_penalty", options.frequency_penalty, -1e6, 1e6, "-1000000..1000000");
  if (static_cast<int64_t>(options.logit_bias.size()) > kMaxRequestBiases) {
    Reject("logit_bias", std::to_string(options.logit_bias.size()) + " entries", "up to 1024");
  }
  std::unordered_set<int32_t> seen;
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= vocab_size) Reject("logit_bias id", std::to_string(id), "an id of the vocabulary");
    if (!seen.insert(id).second) Reject("logit_bias id", std::to_string(id) + " twice", "every id once");
    RequireRange("logit_bias", bias, -1e6, 1e6, "-1000000..1000000");
  }
}

std::string_view FinishReasonName(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kNames = {"", "stop", "length", "cancelled"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace stoch
