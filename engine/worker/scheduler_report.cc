// SPDX-License-Identifier: Apache-2.0
// What jobs are told (scheduler.cc has the rest).

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "engine/worker/scheduler.h"

namespace stoch::serve {

void Scheduler::Report(Running& job) {
  const Generation& generation = *job.generation;
  const GenerateResult& result = generation.result();
  JobUpdate update;
  update.finish = result.finish_reason;
  if (result.ids.size() > job.reported) {
    const auto first = static_cast<std::ptrdiff_t>(job.reported);
    update.ids.assign(result.ids.begin() + first, result.ids.end());
    if (!result.logprobs.empty()) {
      update.logprobs.assign(result.logprobs.begin() + (first - generation.emitted()), result.logprobs.end());
    }
  }
  if (update.ids.empty() && !update.last()) {  // a chunk of the prompt, or an id that was told before
    const bool stepped_again = !result.ids.empty() && result.ids.size() < static_cast<size_t>(generation.emitted());
    if (stepped_again) job.on_update(std::move(update));  // says that the job gets on
    return;
  }
  if (!job.begun) {
    job.begun = true;
    update.prompt_logprobs = result.prompt_logprobs;
    update.queue_seconds = job.queue_seconds;
    update.reused_tokens = generation.prompt_reused();
  }
  if (job.hashes) update.logits_sha256 = generation.LogitsHashSoFar();
  job.reported = std::max(job.reported, result.ids.size());
  update.drafted = result.drafts.drafted - job.drafts.drafted;
  update.drafts_accepted = result.drafts.accepted - job.drafts.accepted;
  job.drafts = result.drafts;
  if (update.last()) ended_.insert(job.id);
  job.alone = job.alone && update.ids.empty();
  job.on_update(std::move(update));
}

void Scheduler::Fail(Running& job, int status, const std::string& message) {
  ended_.insert(job.id);
  FailJob(job.on_update, status, message);
}

// A job is told even where there is no memory for it just now: without that its client would wait for ever.
void Scheduler::FailJob(const std::function<void(JobUpdate)>& on_update, int status, const std::string& message) {
  constexpr int kAttempts = 100;
  constexpr std::chrono::milliseconds kMemoryPause{10};
  for (int attempt = 1;; ++attempt) {
    try {
      JobUpdate update;
      update.error_status = status;
      update.error = message;
      return on_update(std::move(update));
    } catch (const std::bad_alloc&) {
      if (attempt == kAttempts) throw;
      std::this_thread::sleep_for(kMemoryPause);
    }
  }
}

void Scheduler::RemoveEnded() {
  if (ended_.empty()) return;
  const auto removed =
      std::erase_if(running_, [this](const Running& job) { return ended_.contains(job.id); });  // pages go back here
  const std::lock_guard lock(mutex_);
  active_ -= static_cast<int64_t>(removed);
  ended_.clear();
}

void Scheduler::FailAll(int status, const std::string& message) {
  for (Running& job : running_) {
    if (!ended_.contains(job.id)) Fail(job, status, message);
  }
  RemoveEnded();
  std::map<uint64_t, Queued> queue;
  {
    const std::lock_guard lock(mutex_);
    queue.swap(queue_);
    turns_.Clear();
  }
  for (const auto& [id, queued] : queue) FailJob(queued.job.on_update, status, message);
  ShowLoad();
}

void Scheduler::ShowPasses() {
  if (!hooks_.on_passes) return;
  std::vector<uint64_t> jobs;
  for (const Pass& pass : passes_) jobs.insert(jobs.end(), pass.jobs.begin(), pass.jobs.end());
  hooks_.on_passes(jobs);
}

void Scheduler::ShowLoad() {
  const auto total = static_cast<double>(NumPages(engine_.shape()) * kKvPageTokens);
  const int64_t free = prefixes_ == nullptr ? engine_.free_tokens() : prefixes_->free_tokens();
  const std::lock_guard lock(mutex_);
  load_.running = static_cast<int64_t>(running_.size());
  load_.kv_usage = 1 - static_cast<double>(free) / total;
}

}  // namespace stoch::serve
