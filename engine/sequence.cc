// SPDX-License-Identifier: Apache-2.0
// Sequences and the pages of the KV cache that they hold.
#include <algorithm>
#include <utility>

#include "engine/engine_state.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
std::string Positions(int64_t count) { return std::to_string(count) + (count == 1 ? " position" : " positions"); }

Sequence::Sequence(Engine* engine, int64_t capacity, std::vector<KvPage> pages)
    : engine_(engine), capacity_(capacity), pages_(std::move(pages)) {
  page_numbers_.reserve(static_cast<size_t>(PagesOf(capacity)));  // passes in flight look at them where they are
  for (const KvPage& page : pages_) page_numbers_.push_back(*page);
  Engine::State& state = *engine->state_;
  for (const int32_t page : page_numbers_) state.held_pages += state.holders[static_cast<size_t>(page)]++ == 0 ? 1 : 0;
}

Sequence::~Sequence() {
  if (in_flight_) engine_->Forget(this);
  Engine::State& state = *engine_->state_;
  for (const int32_t page : page_numbers_) state.held_pages -= --state.holders[static_cast<size_t>(page)] == 0 ? 1 : 0;
}

int64_t Sequence::room() const { return static_cast<int64_t>(pages_.size()) * kKvPageTokens; }

bool Sequence::Grow(int64_t tokens) {
  STOCH_CHECK(!in_flight_ && tokens <= capacity_);
  const size_t before = pages_.size();
  if (tokens > room() && !engine_->TakePages(PagesOf(tokens) - static_cast<int64_t>(before), &pages_)) return false;
  Engine::State& state = *engine_->state_;
  for (size_t i = before; i < pages_.size(); ++i) {
    page_numbers_.push_back(*pages_[i]);
    state.held_pages += state.holders[static_cast<size_t>(*pages_[i])]++ == 0 ? 1 : 0;
  }
  return true;
}

void Sequence::Append(std::span<const int32_t> ids) {
  const int64_t vocab = engine_->config().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw InvalidInput("token id " + std::to_string(ids[i]) + " at index " + std::to_string(ids_.size() + i) +
                       " is outside the vocabulary; allowed is 0.." + std::to_string(vocab - 1));
  }
  const auto total = static_cast<int64_t>(ids_.size() + ids.size());
  if (total > capacity_) {
    throw InvalidInput(std::to_string(total) + " tokens do not fit in a sequence of " + Positions(capacity_));
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

void Sequence::Truncate(int64_t length) {
  STOCH_CHECK(!in_flight_ && length >= 0 && length <= static_cast<int64_t>(ids_.size()));
  ids_.resize(static_cast<size_t>(length));
  if (length >= computed_) return;
  for (int64_t page = length / kKvPageTokens; page * kKvPageTokens < computed_; ++page) {
    STOCH_CHECK(pages_[static_cast<size_t>(page)].use_count() == 1);
  }
  computed_ = length;
}

const KvPage& Sequence::page(int64_t i) const {
  STOCH_CHECK(i >= 0 && (i + 1) * kKvPageTokens <= computed_);
  return pages_[static_cast<size_t>(i)];
}

// ------------------------------------------------------------------------------------- an engine's pages ----

std::unique_ptr<Sequence> Engine::NewSequence(int64_t capacity) { return NewSequence(capacity, {}, {}); }

// Adds `count` free pages, or none where there are fewer.
bool Engine::TakePages(int64_t count, std::vector<KvPage>* pages) {
  pages->reserve(pages->size() + static_cast<size_t>(count));
  const std::vector<int32_t> numbers = state_->pages.Allocate(count);
  if (numbers.empty()) return false;
  for (const int32_t number : numbers) {
    pages->emplace_back(new int32_t(number), [state = state_.get()](const int32_t* page) {
      state->pages.Release({page, 1});
      delete page;
    });
  }
  return true;
}

std::unique_ptr<Sequence> Engine::NewSequence(int64_t capacity, std::span<const int32_t> ids,
                                              std::span<const KvPage> pages, bool reserved) {
  if (capacity < 1 || capacity > state_->shape.context) {
    throw InvalidInput("a sequence of " + Positions(capacity) + " does not fit the context; allowed is 1.." +
                       std::to_string(state_->shape.context));
  }
  if (PagesOf(capacity) > NumPages(state_->shape)) {
    throw InvalidInput("a sequence of " + Positions(capacity) + " does not fit the KV cache of " +
                       Positions(NumPages(state_->shape) * kKvPageTokens));
  }
  const int64_t count = PagesOf(reserved ? capacity : std::max<int64_t>(1, static_cast<int64_t>(ids.size())));
  const auto shared = static_cast<int64_t>(pages.size());
  const int64_t computed = shared * kKvPageTokens;
  STOCH_CHECK(shared == 0 || (chunk_invariant() && computed < static_cast<int64_t>(ids.size())));
  STOCH_CHECK(shared < count);
  std::vector<KvPage> all(pages.begin(), pages.end());
  if (!TakePages(count - shared, &all)) return nullptr;
  std::unique_ptr<Sequence> sequence(new Sequence(this, capacity, std::move(all)));
  sequence->Append(ids);
  sequence->computed_ = computed;
  return sequence;
}

int64_t Engine::free_tokens() const { return state_->pages.free_pages() * kKvPageTokens; }

int64_t Engine::unheld_tokens(std::span<const KvPage> but) const {
  const auto more = std::count_if(but.begin(), but.end(),
                                  [&](const KvPage& page) { return state_->holders[static_cast<size_t>(*page)] == 0; });
  return (NumPages(state_->shape) - state_->held_pages - more) * kKvPageTokens;
}

}  // namespace stoch
