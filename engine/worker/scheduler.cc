// SPDX-License-Identifier: Apache-2.0
#include "engine/worker/scheduler.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{1000};  // of an idle engine, at most
constexpr int kBadRequest = 400;
constexpr const char* kEngineFailed = "the engine failed; the server is going down";

}  // namespace

Scheduler::Scheduler(Engine& engine, const RunnerOptions& options, SchedulerHooks hooks)
    : engine_(engine),
      options_(options),
      hooks_(std::move(hooks)),
      reserves_(engine.options().precision == Precision::kFp16),
      heartbeat_(Clock::now()) {
  running_.reserve(static_cast<size_t>(engine.options().max_sequences));
  if (options.prefix_reuse && engine.chunk_invariant()) prefixes_ = std::make_unique<PrefixCache>(engine);
  thread_ = std::thread([this] { Run(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = abort_ = stop_ = true;
  }
  Wake();
  thread_.join();
}

// ------------------------------------------------------------------------------------------------- any thread ----

JobRunner::Submission Scheduler::Submit(std::vector<Job> jobs) {
  const Clock::time_point now = Clock::now();
  Submission submission;
  {
    const std::lock_guard lock(mutex_);
    if (failing_) return {Refusal::kFailed, 0};
    if (closed_) return {Refusal::kClosed, 0};
    submission.refusal = turns_.Check(jobs, options_.max_queue, options_.max_queue_per_client);
    if (submission.refusal != Refusal::kNone) return submission;
    submission.first = next_id_;
    try {
      for (Job& job : jobs) {
        Queued& queued = queue_[next_id_];
        queued.id = next_id_++;
        queued.arrival = now;
        turns_.Add(queued.id, job.client);
        queued.job = std::move(job);
      }
    } catch (const std::bad_alloc&) {
      for (uint64_t id = submission.first; id < next_id_; ++id) Unqueue(id);
      throw;
    }
  }
  Wake();
  return submission;
}

void Scheduler::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  // The engine's thread forgets ids that have ended; without active jobs there is nothing to forget them.
  if (!Unqueue(id) && active_ > 0) cancelled_.insert(id);
  Wake();
}

// Requires: the lock.
bool Scheduler::Unqueue(uint64_t id) {
  turns_.Remove(id);
  return queue_.erase(id) > 0;
}

void Scheduler::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Scheduler::Abort() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = abort_ = true;
  }
  Wake();
}

bool Scheduler::Idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && active_ == 0;
}

JobRunner::Health Scheduler::health() const {
  const std::lock_guard lock(mutex_);
  if (failing_) return Health::kFailed;
  return Clock::now() - heartbeat_ > options_.stalled_after ? Health::kStalled : Health::kOk;
}

JobRunner::Load Scheduler::load() const {
  const std::lock_guard lock(mutex_);
  Load load = load_;
  load.waiting = static_cast<int64_t>(queue_.size());
  return load;
}

JobRunner::Faults Scheduler::faults() const {
  const std::lock_guard lock(mutex_);
  Faults faults;
  faults.preemptions = preemptions_;
  return faults;
}

std::exception_ptr Scheduler::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Scheduler::Wake() {
  if (hooks_.wake) {
    hooks_.wake();
  } else {
    wake_.notify_all();
  }
}

// ---------------------------------------------------------------------------------------- the engine's thread ----

void Scheduler::Run() {
  try {
    Loop();
  } catch (...) {
    MarkFailing();
    try {
      FailAll(kUnavailable, kEngineFailed);
    } catch (const std::bad_alloc&) {  // whoever has not been told by now hears of it when its connection closes
    }
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void Scheduler::MarkFailing() {
  const std::lock_guard lock(mutex_);
  failing_ = closed_ = true;
}

void Scheduler::Loop() {
  const auto heartbeat = std::min(kHeartbeat, options_.stalled_after / 4);
  for (;;) {
    if (hooks_.wait) hooks_.wait(std::chrono::milliseconds(0));
    std::unordered_set<uint64_t> cancelled;
    bool abort = false;
    {
      std::unique_lock lock(mutex_);
      while (running_.empty() && passes_.empty() && queue_.empty() && cancelled_.empty() && !abort_) {
        heartbeat_ = Clock::now();
        Wait(lock, heartbeat);
      }
      heartbeat_ = Clock::now();
      cancelled.swap(cancelled_);
      abort = abort_;
    }
    DropCancelled(cancelled);
    if (abort) FailAll(kUnavailable, "the server is shutting down");
    Admit();
    ShowLoad();  // a pass may take long
    if (!running_.empty() || !passes_.empty()) StepOnce();
    ShowLoad();
    if (hooks_.after_turn) hooks_.after_turn();
    if (!abort) continue;
    while (!passes_.empty()) StepOnce();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    abort_ = false;  // closed_ stays: nothing new arrives
  }
}

void Scheduler::Wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds longest) {
  if (!hooks_.wait) {
    wake_.wait_for(lock, longest);
    return;
  }
  lock.unlock();
  hooks_.wait(longest);
  lock.lock();
}

void Scheduler::DropCancelled(const std::unordered_set<uint64_t>& cancelled) {
  if (cancelled.empty()) return;
  for (Running& job : running_) {
    if (!cancelled.contains(job.id)) continue;
    ended_.insert(job.id);
  }
  {
    // Those that gave their pages back since they were cancelled.
    const std::lock_guard lock(mutex_);
    for (const uint64_t id : cancelled) Unqueue(id);
  }
  RemoveEnded();
}

std::optional<Scheduler::Queued> Scheduler::NextAdmissible() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || static_cast<int64_t>(running_.size()) >= engine_.options().max_sequences) return std::nullopt;
  // The next job or none: smaller ones after it do not overtake, so it is sure to get its pages.
  const uint64_t id = turns_.Next().value();
  Queued& next = queue_.at(id);
  if (next.request == nullptr) next.request = std::make_unique<GenerateRequest>(next.job.request());
  if (!HasRoom(*next.request)) return std::nullopt;
  Queued queued = std::move(next);
  Unqueue(id);
  ++active_;
  return queued;
}

void Scheduler::Admit() {
  for (;;) {
    std::optional<Queued> queued;
    try {
      queued = NextAdmissible();
    } catch (const std::bad_alloc&) {
      FailNext();
      continue;
    }
    if (!queued) break;
    Start(std::move(*queued));
  }
  RemoveEnded();
}

void Scheduler::FailNext() {
  std::function<void(JobUpdate)> on_update;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return;  // cancelled meanwhile
    const uint64_t id = turns_.Next().value();
    on_update = std::move(queue_.at(id).job.on_update);
    Unqueue(id);
  }
  FailJob(on_update, kInternalError, kOutOfMemory);
}

void Scheduler::Start(Queued queued) {
  Running job;
  job.id = queued.id;
  job.on_update = std::move(queued.job.on_update);
  job.arrival = queued.arrival;
  job.alone = queued.job.alone;
  job.begun = queued.begun;
  job.age = queued.age > 0 ? queued.age : next_age_++;
  job.hashes = queued.request->hash_logits;
  const std::chrono::duration<double> waited = Clock::now() - queued.arrival;
  job.queue_seconds = queued.queue_seconds.value_or(waited.count());
  try {
    job.generation = std::make_unique<Generation>(engine_, std::move(*queued.request), prefixes_.get(), reserves_);
    job.reported = static_cast<size_t>(job.generation->emitted());
    // The gateway finds stop strings, and takes the hash of what came with them.
    if (job.hashes) job.generation->DraftNothing();
  } catch (...) {
    // It is in neither list: whatever happened, it is told here.
    const auto ended = [&](int status, const std::string& message) {
      FailJob(job.on_update, status, message);
      const std::lock_guard lock(mutex_);
      --active_;
    };
    try {
      throw;
    } catch (const InvalidInput& error) {
      // Requests are checked before they are queued: this one slipped through, and alone pays for it.
      return ended(kBadRequest, error.what());
    } catch (const std::bad_alloc&) {
      return ended(kInternalError, kOutOfMemory);
    } catch (...) {
      MarkFailing();
      ended(kUnavailable, kEngineFailed);
      throw;
    }
  }
  // The oldest first, also where one goes on.
  const auto place =
      std::find_if(running_.begin(), running_.end(), [&](const Running& at) { return at.age > job.age; });
  Running& begun = *running_.insert(place, std::move(job));
  if (!begun.generation->done()) return;
  try {
    Report(begun);
  } catch (const std::bad_alloc&) {
    Fail(begun, kInternalError, kOutOfMemory);
  }
}

}  // namespace stoch::serve
