// SPDX-License-Identifier: Apache-2.0
#include "engine/worker/scheduler.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{1000};  // of an idle engine, at most
constexpr int kBadRequest = 400;
constexpr int kInternalError = 500;
constexpr int kUnavailable = 503;
constexpr const char* kEngineFailed = "the engine failed; the server is going down";
constexpr const char* kOutOfMemory = "out of memory";
constexpr std::chrono::milliseconds kMemoryPause{10};  // before memory is asked for again

int64_t OutputRows(const StepItem& item) {
  if (item.output == StepOutput::kAll) return item.num_tokens;
  return item.output == StepOutput::kLast ? 1 : 0;
}

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
    if (static_cast<int64_t>(queue_.size() + jobs.size()) > options_.max_queue) return {Refusal::kFull, 0};
    submission.first = next_id_;
    for (Job& job : jobs) queue_.push_back({next_id_++, std::move(job), now, nullptr, std::nullopt, false});
  }
  Wake();
  return submission;
}

void Scheduler::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto queued =
      std::find_if(queue_.begin(), queue_.end(), [id](const Queued& candidate) { return candidate.id == id; });
  if (queued == queue_.end()) {
    // The engine's thread forgets ids that have ended; without active jobs there is nothing to forget them.
    if (active_ > 0) cancelled_.insert(id);
  } else {
    queue_.erase(queued);
  }
  Wake();
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
  RemoveEnded();
}

std::optional<Scheduler::Queued> Scheduler::NextAdmissible() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || static_cast<int64_t>(running_.size()) >= engine_.options().max_sequences) return std::nullopt;
  // The oldest job or none: smaller ones after it do not overtake, so it is sure to get its pages.
  Queued& oldest = queue_.front();
  if (oldest.request == nullptr) oldest.request = std::make_unique<GenerateRequest>(oldest.job.request());
  if (!HasRoom(*oldest.request)) return std::nullopt;
  Queued queued = std::move(oldest);
  queue_.pop_front();
  ++active_;
  return queued;
}

void Scheduler::Admit() {
  for (;;) {
    std::optional<Queued> queued;
    try {
      queued = NextAdmissible();
    } catch (const std::bad_alloc&) {
      FailOldest();
      continue;
    }
    if (!queued) break;
    Start(std::move(*queued));
  }
  RemoveEnded();
}

void Scheduler::FailOldest() {
  std::function<void(JobUpdate)> on_update;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return;  // cancelled meanwhile
    on_update = std::move(queue_.front().job.on_update);
    queue_.pop_front();
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
  job.hashes = queued.request->hash_logits;
  const std::chrono::duration<double> waited = Clock::now() - queued.arrival;
  job.queue_seconds = queued.queue_seconds.value_or(waited.count());
  try {
    job.generation = std::make_unique<Generation>(engine_, std::move(*queued.request), prefixes_.get(), reserves_);
    job.reported = static_cast<size_t>(job.generation->emitted());
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
  const auto place = std::find_if(running_.begin(), running_.end(), [&](const Running& at) { return at.id > job.id; });
  Running& begun = *running_.insert(place, std::move(job));
  if (!begun.generation->done()) return;
  try {
    Report(begun);
  } catch (const std::bad_alloc&) {
    Fail(begun, kInternalError, kOutOfMemory);
  }
}

// Whose turn it is, most urgent first, of those that are not in flight.
std::vector<size_t> Scheduler::Order() const {
  // One that is to run alone goes before all others, with nothing else in flight.
  const auto alone = std::find_if(running_.begin(), running_.end(), [](const Running& job) { return job.alone; });
  if (alone != running_.end()) {
    if (!passes_.empty()) return {};
    return {static_cast<size_t>(alone - running_.begin())};
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i].under_way) order.push_back(i);
  }
  if (!engine_.batch_invariant() && !order.empty()) {
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(turn_ % order.size()), order.end());
    return order;
  }
  // Chunks of prompts fill what decoding leaves. A prompt that must be one window goes first, or it might never fit;
  // that delays decoding by one pass per prompt.
  const bool prompts_last = engine_.chunk_invariant();
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return running_[i].generation->prefilling() != prompts_last; });
  return order;
}

void Scheduler::StepOnce() {
  Pass pass;
  try {
    while (engine_.steps_under_way() < engine_.max_steps() && BeginPass()) {
    }
    engine_.Finish();
    pass = std::move(passes_.front());
    passes_.pop_front();
    for (const uint64_t id : pass.jobs) {
      if (Running* job = Find(id)) job->under_way = false;
    }
  } catch (const InvalidInput&) {
    // Somebody's activations met NaN. All sequences are as before every pass in flight; each alone gives the same bits,
    // and only the guilty one fails.
    for (const Pass& failed : std::exchange(passes_, {})) RunAlone(failed);
  } catch (const DeviceRefusal&) {
    // The same: a device that goes on may have refused no more than this size of a pass.
    for (const Pass& failed : std::exchange(passes_, {})) RunAlone(failed);
  } catch (const OutOfMemory& error) {
    FailLargest(std::exchange(passes_, {}), error.what());
  } catch (const std::bad_alloc&) {
    // As above: with less at a time there may be enough. Where passes go on, it was a new one that did not begin.
    if (engine_.steps_under_way() == 0) {
      for (const Pass& failed : std::exchange(passes_, {})) RunAlone(failed);
    }
    std::this_thread::sleep_for(kMemoryPause);
  }
  try {
    AcceptAll(pass);
  } catch (const std::bad_alloc&) {
    for (const uint64_t id : pass.jobs) {
      if (Running* job = Find(id)) Fail(*job, kInternalError, kOutOfMemory);
    }
  }
  RemoveEnded();
  ShowPasses();
}

bool Scheduler::BeginPass() {
  Pass pass;
  const auto lanes = static_cast<size_t>(engine_.max_steps());
  const size_t share = engine_.batch_invariant() ? (running_.size() + lanes - 1) / lanes : 1;
  int64_t budget = engine_.shape().max_rows;
  for (const size_t i : Order()) {
    if (budget == 0 || pass.jobs.size() == share) break;
    Running& job = running_[i];
    if (job.generation == nullptr) continue;  // gave its pages to one before it
    const StepItem item = job.generation->Next(budget);
    if (item.num_tokens == 0 || !MakeRoom(job, item, pass)) continue;
    pass.jobs.push_back(job.id);
    pass.items.push_back(item);
    budget -= item.num_tokens;
  }
  RemoveEnded();  // the preempted ones
  if (pass.jobs.empty()) return false;
  ++turn_;
  passes_.push_back(pass);
  ShowPasses();
  for (const uint64_t id : pass.jobs) Find(id)->under_way = true;
  try {
    engine_.Begin(pass.items);
  } catch (const std::bad_alloc&) {
    // Refused before it changed anything, while other passes go on: its jobs come again.
    const bool others_go_on = engine_.steps_under_way() + 1 == static_cast<int64_t>(passes_.size());
    if (!others_go_on || engine_.steps_under_way() == 0) throw;
    for (const uint64_t id : pass.jobs) Find(id)->under_way = false;
    passes_.pop_back();
    return false;
  }
  return true;
}

Scheduler::Running* Scheduler::Find(uint64_t id) {
  const auto found = std::find_if(running_.begin(), running_.end(), [id](const Running& job) { return job.id == id; });
  return found == running_.end() ? nullptr : &*found;
}

// The job that asked for most of what was not there: most rows of a pass, then the longest context. The others go on as
// if the passes had not begun, and with less in them.
void Scheduler::FailLargest(const std::deque<Pass>& passes, const std::string& message) {
  Running* largest = nullptr;
  std::pair<int64_t, int64_t> most;
  for (const Pass& pass : passes) {
    for (size_t i = 0; i < pass.jobs.size(); ++i) {
      Running* job = Find(pass.jobs[i]);
      if (job == nullptr) continue;
      job->under_way = false;
      const StepItem& item = pass.items[i];
      const std::pair<int64_t, int64_t> size(item.num_tokens, item.sequence->computed());
      if (largest != nullptr && size <= most) continue;
      largest = job;
      most = size;
    }
  }
  if (largest != nullptr) Fail(*largest, kUnavailable, message);
}

void Scheduler::RunAlone(const Pass& pass) {
  for (size_t i = 0; i < pass.jobs.size(); ++i) {
    Running* job = Find(pass.jobs[i]);
    if (job == nullptr) continue;
    job->under_way = false;
    try {
      if (hooks_.on_passes) hooks_.on_passes({&job->id, 1});
      engine_.Step({&pass.items[i], 1});
      AcceptAll({{job->id}, {pass.items[i]}});
    } catch (const InvalidInput& error) {
      Fail(*job, kInternalError, error.what());
    } catch (const DeviceRefusal& error) {
      Fail(*job, kInternalError, error.what());
    } catch (const OutOfMemory& error) {
      Fail(*job, kUnavailable, error.what());
    } catch (const std::bad_alloc&) {
      Fail(*job, kInternalError, kOutOfMemory);
    }
  }
}

// Throws no InvalidInput, DeviceRefusal, OutOfMemory or bad_alloc: a job whose logits cannot be used, or that finds no
// memory, fails alone.
void Scheduler::AcceptAll(const Pass& pass) {
  int64_t row = 0;
  for (size_t i = 0; i < pass.jobs.size(); ++i) {
    Running* job = Find(pass.jobs[i]);
    try {
      if (job != nullptr) job->generation->Accept(pass.items[i], row);
      if (job != nullptr) Report(*job);
    } catch (const InvalidInput& error) {
      Fail(*job, kInternalError, error.what());
    } catch (const DeviceRefusal& error) {
      Fail(*job, kInternalError, error.what());
    } catch (const OutOfMemory& error) {
      Fail(*job, kUnavailable, error.what());
    } catch (const std::bad_alloc&) {
      Fail(*job, kInternalError, kOutOfMemory);
    }
    row += OutputRows(pass.items[i]);
  }
}

}  // namespace stoch::serve
