// SPDX-License-Identifier: Apache-2.0
// Who has pages of the KV cache, and who gives them up (scheduler.cc has the rest).

#include <algorithm>
#include <new>
#include <utility>

#include "engine/worker/scheduler.h"

namespace stoch::serve {

// Positions of pages that a request needs to begin: its first new token counts, so that it is not preempted at once.
int64_t Scheduler::PlannedTokens(const GenerateRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = engine_.shape().context - prompt;
  const int64_t most = prompt + (request.max_tokens < 0 ? room : std::min(request.max_tokens, room));
  const int64_t begin = prompt + static_cast<int64_t>(request.emitted.size()) + 1;
  const int64_t tokens = reserves_ ? most : std::min(begin, most);
  return RoundUpToPages(tokens);
}

// Left to those that run, a page each: a new one that takes the last page would soon have to give it back.
int64_t Scheduler::GrowthTokens() const {
  return kKvPageTokens * std::count_if(running_.begin(), running_.end(),
                                       [](const Running& job) { return job.generation->missing_room() > 0; });
}

bool Scheduler::HasRoom(const GenerateRequest& request) {
  const int64_t planned = PlannedTokens(request) + GrowthTokens();
  if (prefixes_ == nullptr || planned <= engine_.free_tokens()) return planned <= engine_.free_tokens();
  const int top_logprobs = request.prompt_logprobs ? request.top_logprobs : -1;
  const PrefixCache::Match known = prefixes_->Find(request.prompt, top_logprobs, request.cache_salt);
  return planned - static_cast<int64_t>(known.pages.size()) * kKvPageTokens <= prefixes_->free_tokens(known.pages);
}

// Whether the job has pages for its item now, be it that others gave theirs for it.
bool Scheduler::MakeRoom(Running& job, const StepItem& item, const Pass& pass) {
  const int64_t needed = item.sequence->computed() + item.num_tokens;
  if (needed <= item.sequence->room()) return true;
  for (;;) {
    const int64_t more = RoundUpToPages(needed - item.sequence->room());
    if (prefixes_ != nullptr) prefixes_->MakeRoom(more);
    if (item.sequence->Grow(needed)) return true;
    Running* victim = Victim(job, pass);
    if (victim == nullptr) return false;  // older ones have them, or passes in flight: it waits
    Preempt(*victim);
  }
}

// The job admitted last of those that may be preempted for `job`; null if there is none.
Scheduler::Running* Scheduler::Victim(const Running& job, const Pass& pass) {
  const auto may_go = [&](const Running& other) {
    return other.generation != nullptr && !other.in_flight && &other != &job && (other.age > job.age || job.alone) &&
           std::find(pass.jobs.begin(), pass.jobs.end(), other.id) == pass.jobs.end() && !ended_.contains(other.id);
  };
  const auto found = std::find_if(running_.rbegin(), running_.rend(), may_go);
  return found == running_.rend() ? nullptr : &*found;
}

// Back into the queue, from where it goes on when its turn comes.
void Scheduler::Preempt(Running& job) {
  try {
    Queue(job);
  } catch (const std::bad_alloc&) {
    Fail(job, kInternalError, kOutOfMemory);
  }
  job.generation.reset();
  ended_.insert(job.id);
}

void Scheduler::Queue(Running& job) {
  Queued queued;
  queued.id = job.id;
  queued.job.on_update = job.on_update;
  queued.job.alone = job.alone;
  queued.arrival = job.arrival;
  queued.queue_seconds = job.queue_seconds;
  queued.begun = job.begun;
  queued.age = job.age;
  queued.request = std::make_unique<GenerateRequest>(job.generation->Rest());
  const std::lock_guard lock(mutex_);
  const auto place = queue_.emplace(job.id, std::move(queued)).first;
  try {
    turns_.AddFirst(job.id, job.age);
  } catch (const std::bad_alloc&) {
    queue_.erase(place);
    throw;
  }
  ++preemptions_;
}

}  // namespace stoch::serve
