// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <algorithm>
#include <limits>

#include "kernels/math/random.h"
#include "models/decoder/memory_plan.h"

namespace stoch {

static_assert(kMaxRequestBiases == kMaxLogitBiases);  // what memory is planned for

namespace {

// Random streams of the sampler start here, away from those of random weights.
constexpr uint64_t kSamplerStream = 0x73616d706c65ull << 16;

}  // namespace

TokenCount& TokenCounts::EntryOf(int32_t id) {
  const auto [found, is_new] = index_.try_emplace(id, entries_.size());
  if (is_new) entries_.push_back({id, 0});
  return entries_[found->second];
}

void TokenCounts::AddPrompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) (void)EntryOf(id);
}

void TokenCounts::AddGenerated(int32_t id) { ++EntryOf(id).generated; }

bool HasPenalties(const SamplingOptions& options) {
  return options.repeat_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0;
}

TokenPick MakePick(const SamplingOptions& options, std::span<const TokenCount> counts, int64_t position) {
  TokenPick pick;
  pick.temperature = static_cast<float>(options.temperature);
  pick.top_k = static_cast<int32_t>(std::min<int64_t>(options.top_k, std::numeric_limits<int32_t>::max()));
  pick.top_p = options.top_p;
  pick.min_p = options.min_p;
  pick.repeat_penalty = static_cast<float>(options.repeat_penalty);
  pick.presence_penalty = static_cast<float>(options.presence_penalty);
  pick.frequency_penalty = static_cast<float>(options.frequency_penalty);
  pick.random = RandomBits(options.seed, kSamplerStream + options.choice, static_cast<uint64_t>(position));
  pick.biases = options.logit_bias;
  if (HasPenalties(options)) pick.counts = counts;
  return pick;
}

}  // namespace stoch
