// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/worker_pool.h"

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <new>
#include <string_view>
#include <utility>

#include "engine/ipc/convert.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;

constexpr int kBadGateway = 500;
constexpr int kUnavailable = 503;
constexpr const char* kOutOfMemory = "out of memory";  // short enough for a string to take none
constexpr std::chrono::milliseconds kMemoryPause{10};  // for some to be there again
constexpr size_t kAhead = 2;  // jobs that a worker has next to those of a pass, so that a place is taken at once

// Whether telling a client of it is little work.
bool IsSmall(const JobUpdate& update) {
  constexpr size_t kFew = 4;
  constexpr size_t kFewAlternatives = 20;
  return update.prompt_logprobs.empty() && update.ids.size() <= kFew &&
         (update.logprobs.empty() || update.logprobs.front().top.size() <= kFewAlternatives);
}

JobUpdate ErrorUpdate(int status, std::string_view message) noexcept {
  JobUpdate update;
  update.error_status = status;
  try {
    update.error = message;
  } catch (const std::bad_alloc&) {
    update.error = kOutOfMemory;
  }
  return update;
}

}  // namespace

WorkerPool::WorkerPool(Options options, LogSink log) : options_(std::move(options)), log_(std::move(log)), watch_(io_) {
  for (size_t i = 0; i < options_.commands.size(); ++i) {
    replicas_.push_back(std::make_unique<Replica>(io_));
    replicas_.back()->index = i;
  }
  // Workers die with the thread that starts them.
  thread_ = std::thread([this] { Run(); });
}

// Without memory a step of this thread is left undone: messages of workers whose step it was are lost, so they start
// again, and Watch does what else is missing. Their jobs go on where they were.
void WorkerPool::Run() {
  pthread_setname_np(pthread_self(), "pool");
  const auto work = asio::make_work_guard(io_);
  const auto begin = [this] {
    for (const auto& replica : replicas_) StartWorker(*replica);
    Watch();
    io_.run();
  };
  const auto go_on = [this] {
    Mend();
    Watch();
    io_.run();
  };
  for (bool first = true; !io_.stopped(); first = false) {
    try {
      first ? begin() : go_on();
    } catch (const std::exception& error) {
      SayError(error.what());
      std::this_thread::sleep_for(kMemoryPause);
    }
  }
}

WorkerPool::~WorkerPool() {
  asio::post(io_, [this] {
    for (const auto& replica : replicas_) replica->process.reset();
    io_.stop();
  });
  thread_.join();
  Told told;
  {
    const std::lock_guard lock(mutex_);
    FailAll(kUnavailable, "the server is shutting down", &told);
  }
  Tell(std::move(told));
}

// ------------------------------------------------------------------------------------------------- any thread ----

std::optional<ServedModel> WorkerPool::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

JobRunner::Submission WorkerPool::Submit(std::vector<Job> jobs) {
  Submission submission;
  {
    const std::lock_guard lock(mutex_);
    if (failing_) return {Refusal::kFailed, 0};
    if (closed_) return {Refusal::kClosed, 0};
    submission.refusal = waiting_.Check(jobs, options_.max_queue, options_.max_queue_per_client);
    if (submission.refusal != Refusal::kNone) return submission;
    submission.first = next_id_;
    try {
      for (Job& job : jobs) {
        const uint64_t id = next_id_++;
        waiting_.Add(id, job.client);
        PoolJob& added = jobs_[id];
        added.job = std::move(job);
        added.arrival = Clock::now();
      }
    } catch (const std::bad_alloc&) {  // all of them, or none: not even a place for a job that there is not
      for (uint64_t id = submission.first; id < next_id_; ++id) {
        waiting_.Remove(id);
        jobs_.erase(id);
      }
      throw;
    }
  }
  try {
    Dispatch();
  } catch (const std::bad_alloc&) {  // Watch does it
  }
  return submission;
}

void WorkerPool::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Replica* replica = found->second.replica;
  if (replica != nullptr && replica->process != nullptr) return Forget(id, *replica);
  End(id);
}

void WorkerPool::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void WorkerPool::Abort() {
  Told told;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    ipc::ToWorker message;
    for (const auto& [id, job] : jobs_) message.add_cancel(id);
    for (const auto& replica : replicas_) {
      if (replica->process != nullptr) replica->process->Send(message);
    }
    FailAll(kUnavailable, "the server is shutting down", &told);
  }
  Tell(std::move(told));
}

bool WorkerPool::Idle() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty();
}

JobRunner::Health WorkerPool::health() const {
  const std::lock_guard lock(mutex_);
  if (failing_) return Health::kFailed;
  Health health = Health::kLoading;
  for (const auto& replica : replicas_) {
    if (replica->is_ready()) return Health::kOk;
    if (replica->is_running() && replica->is_silent) health = Health::kSilent;
  }
  return health;
}

JobRunner::Load WorkerPool::load() const {
  const std::lock_guard lock(mutex_);
  Load load;
  load.waiting = static_cast<int64_t>(waiting_.size());
  for (const auto& replica : replicas_) {
    load.running += replica->load.running;
    load.waiting += replica->load.waiting;
    load.kv_usage += replica->load.kv_usage / static_cast<double>(replicas_.size());
  }
  return load;
}

std::exception_ptr WorkerPool::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<JobRunner::Worker> WorkerPool::workers() const {
  const std::lock_guard lock(mutex_);
  std::vector<Worker> workers;
  for (const auto& replica : replicas_) {
    Worker& worker = workers.emplace_back();
    worker.restarts = replica->restarts;
    worker.state = replica->state();
    worker.rank_waited_seconds = replica->rank_waited_seconds;
    if (replica->process != nullptr) worker.pid = replica->process->pid();
    if (!replica->is_ready()) continue;
    worker.device = replica->hello->device();
    worker.device_bytes = replica->device_bytes;
    worker.device_used_bytes = replica->device_used_bytes;
    worker.hop_seconds.assign(replica->hello->hop_seconds().begin(), replica->hello->hop_seconds().end());
  }
  return workers;
}

JobRunner::Faults WorkerPool::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

WorkerPool::Replica* WorkerPool::FreeReplica() {
  Replica* free = nullptr;
  for (const auto& replica : replicas_) {
    if (!replica->is_ready()) continue;
    if (replica->jobs.size() >= static_cast<size_t>(replica->hello->max_sequences()) + kAhead) continue;
    if (free == nullptr || replica->jobs.size() < free->jobs.size()) free = replica.get();
  }
  return free;
}

void WorkerPool::Dispatch() {
  Told told;
  {
    const std::lock_guard lock(mutex_);
    try {
      while (const std::optional<uint64_t> next = waiting_.Next()) {
        Replica* replica = FreeReplica();
        if (replica == nullptr) break;
        const uint64_t id = *next;
        if (!Begin(id, jobs_.at(id), *replica, &told)) End(id);
      }
    } catch (const std::bad_alloc&) {  // Watch goes on; those that ended are told so now
    }
  }
  Tell(std::move(told));
}

bool WorkerPool::Begin(uint64_t id, PoolJob& job, Replica& replica, Told* told) {
  told->reserve(told->size() + 1);
  try {
    replica.jobs.insert(id);
    GenerateRequest request = job.job.request();
    if (!job.begun) job.emitted = request.emitted;  // of another run of its answer
    request.emitted = job.emitted;
    ipc::ToWorker message;
    *message.add_start() = ipc::ToMessage(id, request);
    message.mutable_start(0)->set_client(job.job.client);
    message.mutable_start(0)->set_alone(job.runs_alone());
    message.mutable_start(0)->set_blocking(job.runs_blocking());
    replica.process->Send(message);
  } catch (const std::bad_alloc&) {
    replica.jobs.erase(id);
    told->push_back(LastOf(job, kBadGateway, kOutOfMemory));
    return false;
  }
  if (!job.begun) job.queue_seconds = std::chrono::duration<double>(Clock::now() - job.arrival).count();
  job.begun = true;
  job.replica = &replica;
  waiting_.Remove(id);
  return true;
}

// ------------------------------------------------------------------------------------------ the pool's thread ----

void WorkerPool::OnMessage(Replica& replica, const ipc::FromWorker& message) {
  if (message.has_failure()) {
    replica.failure = message.failure().message();
    replica.exit_code = message.failure().exit_code();
    replica.lost_rank = message.failure().lost_rank();
    {
      const std::lock_guard lock(mutex_);
      replica.is_dead = true;  // as good as
    }
    replica.process->Kill();  // a device that is lost may take its time to be let go of
    return;
  }
  if (message.device_bytes() != 0) {
    const std::lock_guard lock(mutex_);
    replica.device_bytes = message.device_bytes();
    replica.device_used_bytes = message.device_used_bytes();
  }
  if (message.has_hello()) return OnHello(replica, message.hello());
  Told told;
  told.reserve(static_cast<size_t>(message.updates_size()));
  {
    const std::lock_guard lock(mutex_);
    replica.load = {message.running(), message.waiting(), message.kv_usage()};
    faults_.preemptions += message.preemptions();
    replica.rank_waited_seconds += message.rank_waited_seconds();
    for (const ipc::Update& update : message.updates()) {
      const auto found = jobs_.find(update.job());
      if (found == jobs_.end() || found->second.replica != &replica) continue;  // cancelled
      try {
        Take(found->second, replica, update, &told);
      } catch (const std::bad_alloc&) {  // it has a token that nobody has heard of: the end of this one
        told.push_back(LastOf(found->second, kBadGateway, kOutOfMemory));
        Forget(update.job(), replica);
      }
    }
  }
  Tell(std::move(told));
  Dispatch();
}

// told: has room for one more.
void WorkerPool::Take(PoolJob& job, Replica& replica, const ipc::Update& message, Told* told) {
  JobUpdate update = ipc::FromMessage(message);
  if (update.ids.empty() && !update.last()) {
    ++job.stepped_again;
    return;
  }
  if (job.emitted.empty()) update.queue_seconds += job.queue_seconds;
  if (!update.ids.empty()) {
    job.blame = job.losses = 0;
    replica.losses = 0;
  }
  const bool last = update.last();
  if (!last) job.emitted.insert(job.emitted.end(), update.ids.begin(), update.ids.end());
  Notice notice{job.job.on_update, std::move(update), job.job.kept};
  told->push_back(std::move(notice));
  if (last) End(message.job());
}

// It, in the worker too, which may find out later that nobody listens.
void WorkerPool::Forget(uint64_t id, Replica& replica) noexcept {
  try {
    ipc::ToWorker message;
    message.add_cancel(id);
    replica.process->Send(message);
  } catch (const std::bad_alloc&) {
  }
  End(id);
}

void WorkerPool::End(uint64_t id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  if (found->second.replica != nullptr) found->second.replica->jobs.erase(id);
  waiting_.Remove(id);
  jobs_.erase(found);
}

// Errors: bad_alloc, and then nothing has changed.
void WorkerPool::FailAll(int status, std::string_view message, Told* told) {
  told->reserve(told->size() + jobs_.size());
  for (auto& [id, job] : jobs_) told->push_back(LastOf(job, status, message));
  jobs_.clear();
  waiting_.Clear();
  for (const auto& replica : replicas_) replica->jobs.clear();
}

// What others may say another time is no part of an answer.
void WorkerPool::Keep(const Told& told) {
  std::vector<AnswerLog::Entry> entries;
  for (const Notice& notice : told) {
    if (notice.kept.answer.number == 0 || notice.update.error_status == kUnavailable) continue;
    entries.push_back({notice.kept, &notice.update});
  }
  if (!entries.empty()) options_.answers->Write(entries);
}

void WorkerPool::Tell(Told told) {
  try {
    if (options_.answers != nullptr) Keep(told);
  } catch (const std::bad_alloc&) {  // a kept answer that goes on has no hole
    for (Notice& notice : told) {
      if (notice.kept.answer.number != 0) notice.update = ErrorUpdate(kBadGateway, kOutOfMemory);
    }
  }
  // One token alone waits for no thread but this one; those of many are the work of many threads.
  if (told.size() == 1) told.front().update.has_time = IsSmall(told.front().update);
  for (Notice& notice : told) notice.on_update(std::move(notice.update));
}

// Takes what the job is told with, so that `told` has room for the notice before this is called.
WorkerPool::Notice WorkerPool::LastOf(PoolJob& job, int status, std::string_view message) noexcept {
  JobUpdate update = ErrorUpdate(status, message);
  return {std::move(job.job.on_update), std::move(update), job.job.kept};
}

}  // namespace stoch::serve
