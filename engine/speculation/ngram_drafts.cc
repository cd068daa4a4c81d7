// SPDX-License-Identifier: Apache-2.0
#include "engine/speculation/ngram_drafts.h"

#include <algorithm>

namespace stoch {
namespace {

constexpr double kLearningRate = 0.15;  // the last dozen of guesses count

uint64_t HashOf(std::span<const int32_t> ids) {
  uint64_t hash = 0;
  for (const int32_t id : ids) {
    hash = (hash ^ static_cast<uint32_t>(id)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

void NgramDrafts::Accuracy::Learn(bool right) { likely += kLearningRate * ((right ? 1.0 : 0.0) - likely); }

int NgramDrafts::ClassOf(int64_t matched) {
  if (matched < 2 * kLength) return 0;
  if (matched < 4 * kLength) return 1;
  return matched < 12 * kLength ? 2 : 3;
}

// Goes on to the end of `ids`: checks each guess, remembers where each three tokens led, and finds the next guess.
void NgramDrafts::Take(std::span<const int32_t> ids) {
  const auto size = static_cast<int64_t>(ids.size());
  for (; seen_ < size; ++seen_) {
    const bool guessed = source_ >= 0;
    const bool right = guessed && ids[static_cast<size_t>(source_)] == ids[static_cast<size_t>(seen_)];
    if (guessed) accuracy_[static_cast<size_t>(ClassOf(matched_))].Learn(right);
    source_ = right ? source_ + 1 : -1;
    matched_ = right ? matched_ + 1 : 0;
    const int64_t next = seen_ + 1;
    if (next < kLength) continue;
    const auto last = ids.subspan(static_cast<size_t>(next - kLength), static_cast<size_t>(kLength));
    const auto [found, is_new] = after_.try_emplace(HashOf(last), next);
    if (is_new) continue;
    const int64_t before = found->second;
    found->second = next;
    if (source_ >= 0) continue;  // the longer match goes on
    const auto there = ids.subspan(static_cast<size_t>(before - kLength), static_cast<size_t>(kLength));
    if (!std::equal(last.begin(), last.end(), there.begin())) continue;  // another three tokens with this hash
    source_ = before;
    matched_ = kLength;
  }
}

std::vector<DraftedToken> NgramDrafts::Propose(std::span<const int32_t> ids, int64_t most) {
  Take(ids);
  std::vector<DraftedToken> drafts;
  if (source_ < 0) return drafts;
  const int64_t there = std::min(most, static_cast<int64_t>(ids.size()) - source_);
  for (int64_t i = 0; i < there; ++i) {
    drafts.push_back(
        {ids[static_cast<size_t>(source_ + i)], accuracy_[static_cast<size_t>(ClassOf(matched_ + i))].likely});
  }
  return drafts;
}

}  // namespace stoch
