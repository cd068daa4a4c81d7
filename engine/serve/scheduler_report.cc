// What jobs are told, and the metrics with it (scheduler.cc has the rest).

#include <new>
#include <thread>
#include <utility>

#include "engine/serve/scheduler.h"

namespace stoch::serve {
namespace {

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void Scheduler::Report(Running& job) {
  const GenerateResult& result = job.generation->result();
  JobUpdate update;
  update.text = job.generation->TakeText();
  update.finish = result.finish_reason;
  const auto first = static_cast<std::ptrdiff_t>(job.reported);
  update.ids.assign(result.ids.begin() + first, result.ids.end());
  if (!result.logprobs.empty()) update.logprobs.assign(result.logprobs.begin() + first, result.logprobs.end());
  if (!job.prompt_reported && (!update.ids.empty() || update.last())) {
    update.prompt_logprobs = result.prompt_logprobs;
    job.prompt_reported = true;
  }
  if (update.last()) update.logits_sha256 = result.logits_sha256;
  if (update.ids.empty() && !update.last()) return;  // a chunk of the prompt

  const Clock::time_point now = Clock::now();
  if (!update.ids.empty()) {
    metrics_.AddGeneratedTokens(static_cast<int64_t>(update.ids.size()));
    if (job.reported == 0) {
      metrics_.ObserveTimeToFirstToken(Seconds(now - job.arrival));
    } else {
      metrics_.ObserveInterToken(Seconds(now - job.last_token));
    }
    job.last_token = now;
  }
  job.reported = result.ids.size();
  if (update.last()) {
    metrics_.ObserveEndToEnd(Seconds(now - job.arrival));
    metrics_.CountFinished(FinishReasonName(update.finish));
    ended_.insert(job.id);
  }
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
  metrics_.CountFinished("error");
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
  std::deque<Queued> queue;
  {
    const std::lock_guard lock(mutex_);
    queue.swap(queue_);
  }
  for (const Queued& queued : queue) FailJob(queued.job.on_update, status, message);
  ShowGauges();
}

void Scheduler::ShowGauges() {
  const auto total = static_cast<double>(NumPages(engine_.shape()) * kKvPageTokens);
  const int64_t free = prefixes_ == nullptr ? engine_.free_tokens() : prefixes_->free_tokens();
  metrics_.SetKvUsage(1 - static_cast<double>(free) / total);
  metrics_.SetRunning(static_cast<int64_t>(running_.size()));
  const std::lock_guard lock(mutex_);
  metrics_.SetWaiting(static_cast<int64_t>(queue_.size()));
}

}  // namespace stoch::serve
