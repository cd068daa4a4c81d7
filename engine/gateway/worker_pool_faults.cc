// SPDX-License-Identifier: Apache-2.0
// How the pool starts workers and goes on without them (worker_pool.cc has the rest).

#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <fstream>
#include <new>
#include <string_view>
#include <utility>

#include "engine/gateway/worker_pool.h"
#include "engine/ipc/convert.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};  // before a second start without a token in between; twice that for the next
constexpr milliseconds kLongestPause{5000};
constexpr std::chrono::seconds kLongLife{60};  // of a ready worker: its loss follows from none before
constexpr int kBlameOfKill = 1;                // not 0: who sent it may watch memory
constexpr std::string_view kWait = "wait";     // MarkingBackend: for the device
constexpr std::string_view kKilled = "signal 9";
constexpr int kBadInput = 2;  // the worker's exit code
constexpr int kInternalError = 500;
constexpr int kUnavailable = 503;

// A device that failed, or that its host waits for, stopped at what it ran, not at what was issued to it since.
void NameRunning(ipc::CrashReport* report, bool failed) {
  if (report->is_exact || report->running_op.empty()) return;
  report->is_exact = failed || report->op == kWait;
  report->layer = report->running_layer;
  report->op = report->running_op;
}

std::string ShownName(uint64_t id, const Job& job) { return job.name.empty() ? std::to_string(id) : job.name; }

// Whether a launcher says that one of its processes ended itself: what it exits with where a signal did it.
bool SaysCrash(const std::string& how) {
  for (const int signal : {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV}) {
    if (how == "exit code " + std::to_string(128 + signal)) return true;
  }
  return false;
}

// Whether the signal that ended a worker was another process's.
bool SentFromOutside(const ipc::CrashReport& report, const std::string& how) {
  return report.sender != 0 && how == "signal " + std::to_string(report.signal);
}

// Processes that the kernel has killed for want of memory, in this system and in every cgroup of it; 0 if it does not say.
int64_t OutOfMemoryKills() {
  std::ifstream counters("/proc/vmstat");
  std::string name;
  for (int64_t count = 0; counters >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace

// Where a worker was.
std::string WorkerPool::Place(const ipc::CrashReport& report) {
  if (report.op.empty()) return "no operator";
  return (report.layer < 0 ? "" : "layer " + std::to_string(report.layer) + " ") + report.op;
}

void WorkerPool::StartWorker(Replica& replica) {
  WorkerProcess::Events events;
  events.on_message = [this, &replica](const ipc::FromWorker& message) {
    if (replica.is_unheard) return;
    try {
      OnMessage(replica, message);
    } catch (const std::bad_alloc&) {  // nothing of it was taken: its jobs go on in another one
      replica.is_unheard = true;
      replica.process->Kill();
    }
  };
  events.on_death = [this, &replica] { OnDeath(replica); };
  events.on_end = [this, &replica](const std::string& how) { OnEnd(replica, how); };
  try {
    auto process =
        std::make_unique<WorkerProcess>(io_, options_.commands[replica.index], std::move(events), options_.kind);
    log_({LogLevel::kInfo, "worker_started", {{"pid", std::to_string(process->pid())}}});
    const std::lock_guard lock(mutex_);
    replica.process = std::move(process);
    replica.seen = {};
    replica.silent = replica.stuck = Clock::duration(0);
    replica.is_unheard = false;
    replica.is_dead = replica.is_silent = replica.stalled = replica.stopped = false;
    replica.out_of_memory_kills = OutOfMemoryKills();
  } catch (const std::bad_alloc&) {
    StartLater(replica);
  } catch (const DeviceError& error) {
    log_({LogLevel::kError, "worker_not_started", {{"why", error.what()}}});
    replica.failure = error.what();
    OnEnd(replica, "no process");
  }
}

void WorkerPool::StartLater(Replica& replica) {
  const int doublings = std::min(replica.losses - 2, 10);
  milliseconds pause{0};
  if (replica.losses > 1) pause = std::min(kLongestPause, kFirstPause * (1 << doublings));
  replica.restart.expires_after(pause);
  replica.restart.async_wait([this, &replica](const boost::system::error_code& error) {
    replica.is_waiting = false;
    if (!error) StartWorker(replica);
  });
  replica.is_waiting = true;
}

// After an exception that may have come at any place. Its messages may be lost with it, so a worker starts again; every
// job waits, or a worker has it; and every worker runs, or will.
void WorkerPool::Mend() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, job] : jobs_) {
    if (job.replica != nullptr && job.replica->process != nullptr && job.replica->jobs.contains(id)) continue;
    if (job.begun) {
      waiting_.AddFirst(id, id);
    } else {
      waiting_.Add(id, job.job.client);
    }
    job.replica = nullptr;
  }
  for (const auto& replica : replicas_) {
    if (replica->process != nullptr) {
      replica->is_unheard = true;
      replica->process->Kill();
    } else if (!replica->is_waiting && !failing_) {
      StartLater(*replica);
    }
  }
}

void WorkerPool::SayError(const char* what) noexcept {
  try {
    log_({LogLevel::kError, "pool_error", {{"why", what}}});
  } catch (const std::exception&) {  // of memory for the words
  }
}

std::string WorkerPool::NameOf(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? std::to_string(id) : ShownName(id, found->second.job);
}

// What it said last is still to come, but nothing can be asked of it: /health shows that at once.
void WorkerPool::OnDeath(Replica& replica) {
  const std::lock_guard lock(mutex_);
  replica.is_dead = true;
}

// How much of a loss the requests in its pass are blamed for.
int WorkerPool::BlameOf(const Replica& replica, const ipc::CrashReport& report, const std::string& how) const {
  if (replica.stopped || SentFromOutside(report, how)) return 0;
  const bool none_for_memory = replica.out_of_memory_kills == OutOfMemoryKills();
  if (replica.lost_rank && none_for_memory) return kBlameOfKill;
  // One whose other threads went on hangs in a request's pass; one that did not run at all was kept from it.
  if (replica.stalled) return replica.silent < replica.stuck / 2 ? kBlame : kBlameOfKill;
  // One that said why it ends is killed where it takes longer to go than to be heard.
  if (!replica.failure.empty() || !none_for_memory) return kBlame;
  // A launcher that ends because one of its processes did, whichever it was.
  const bool is_launcher = options_.kind == WorkerProcess::Kind::kLaunched;
  const bool killed = is_launcher ? report.signal == 0 && !SaysCrash(how) : how == kKilled;
  return killed ? kBlameOfKill : kBlame;
}

void WorkerPool::OnEnd(Replica& replica, const std::string& how) {
  ipc::CrashReport report = replica.process == nullptr ? ipc::CrashReport() : replica.process->Report();
  if (replica.stalled || !replica.failure.empty()) NameRunning(&report, !replica.failure.empty());
  const bool was_ready = replica.hello.has_value();
  std::string jobs;
  for (const uint64_t job : report.jobs) jobs += (jobs.empty() ? "" : ",") + NameOf(job);
  log_({LogLevel::kError,
        "worker_lost",
        {{"pid", std::to_string(replica.process == nullptr ? 0 : replica.process->pid())},
         {"how", replica.stopped                ? "stopped"
                 : replica.stalled              ? "stalled"
                 : !replica.failure.empty()     ? "said so"
                 : SentFromOutside(report, how) ? how + " from process " + std::to_string(report.sender)
                                                : how},
         {"why", replica.failure},
         {"pass", std::to_string(report.pass)},
         {"at", report.in_pass ? Place(report) : "no pass"},
         {"exact", report.in_pass && report.is_exact ? "yes" : "no"},
         {"jobs", jobs}}});
  const int blame = BlameOf(replica, report, how);
  Told told;
  bool give_up = false;
  {
    const std::lock_guard lock(mutex_);
    // Whoever calls this is the process itself.
    asio::post(io_, [process = std::shared_ptr<WorkerProcess>(std::move(replica.process))] {});
    replica.hello.reset();
    replica.load = {};
    if (was_ready && Clock::now() - replica.ready_since >= kLongLife) replica.losses = 0;
    ++replica.losses;
    ++replica.restarts;
    ++faults_.restarts;
    if (was_ready && options_.kind == WorkerProcess::Kind::kLaunched) ++faults_.ranks_lost;
    if (!was_ready) ++replica.failed_starts;
    // Bad options, a bad model or no device, said by a first worker: that stays so. What a signal did may not.
    const bool was_killed = replica.failure.empty() && how.starts_with("signal ");
    give_up = !was_ready && !model_ && !was_killed;
    Settle(replica, report, blame, &told);
  }
  Tell(std::move(told));
  if (!was_ready) last_failure_ = replica.failure.empty() ? "a worker ended while it started: " + how : replica.failure;
  if (give_up) {
    GiveUp(replica.exit_code == kBadInput ? std::make_exception_ptr(InvalidInput(last_failure_))
                                          : std::make_exception_ptr(DeviceError(last_failure_)),
           kNoWorker);
    return;
  }
  replica.failure.clear();
  replica.exit_code = 0;
  replica.lost_rank = false;
  if (health() == Health::kFailed) return;
  StartLater(replica);
  Dispatch();
}

// Its jobs wait for another one, but for those that end here.
void WorkerPool::Settle(Replica& replica, const ipc::CrashReport& report, int blame, Told* told) {
  const bool repeatable = !model_ || model_->precision != "fp16";
  told->reserve(told->size() + replica.jobs.size());
  for (const uint64_t id : std::exchange(replica.jobs, {})) {
    PoolJob& job = jobs_.at(id);
    job.replica = nullptr;
    if (Blame(job, id, report, blame, told)) {
      End(id);
    } else if (!repeatable && !job.emitted.empty()) {
      told->push_back(
          LastOf(job, kUnavailable, "the worker was lost, and fp16 does not promise the same tokens again"));
      End(id);
    } else {
      ++faults_.replays;
      waiting_.AddFirst(id, id);
    }
  }
}

// Returns whether it is refused.
bool WorkerPool::Blame(PoolJob& job, uint64_t id, const ipc::CrashReport& report, int blame, Told* told) {
  const int64_t at = std::exchange(job.stepped_again, 0);
  if (blame == 0) return false;
  if (std::find(report.jobs.begin(), report.jobs.end(), id) == report.jobs.end()) return false;
  if (std::exchange(job.blamed_at, at) != at) job.blame = job.losses = 0;
  job.blame += blame;
  ++job.losses;
  if (job.blame < 3 * kBlame) {
    if (job.runs_alone() && job.blame - blame < 2 * kBlame)
      log_({LogLevel::kWarning, "job_runs_alone", {{"job", ShownName(id, job.job)}}});
    return false;
  }
  ++faults_.refused;
  const GenerateRequest request = job.job.request();
  const SamplingOptions& sampling = request.sampling;
  log_({LogLevel::kError,
        "job_refused",
        {{"job", ShownName(id, job.job)},
         {"at", Place(report)},
         {"exact", report.is_exact ? "yes" : "no"},
         {"prompt_tokens", std::to_string(request.prompt.size())},
         {"emitted", std::to_string(job.emitted.size())},
         {"max_tokens", std::to_string(request.max_tokens)},
         {"temperature", std::to_string(sampling.temperature)},
         {"top_p", std::to_string(sampling.top_p)},
         {"top_k", std::to_string(sampling.top_k)},
         {"min_p", std::to_string(sampling.min_p)},
         {"biases", std::to_string(sampling.logit_bias.size())},
         {"seed", std::to_string(sampling.seed)},
         {"choice", std::to_string(sampling.choice)},
         {"logprobs", std::to_string(request.top_logprobs)}}});
  told->push_back(LastOf(job, kInternalError,
                         "this request ended " + std::to_string(job.losses) + " workers, the last one at " +
                             Place(report) + "; it is not tried again"));
  return true;
}

// Errors: bad_alloc, and then nothing has changed: starts go on, and what led here does again.
void WorkerPool::GiveUp(std::exception_ptr why, std::string_view told_as) {
  Told told;
  {
    const std::lock_guard lock(mutex_);
    if (failing_) return;
    FailAll(kUnavailable, told_as, &told);
    failing_ = closed_ = true;
  }
  Tell(std::move(told));
  const std::lock_guard lock(mutex_);
  failure_ = std::move(why);
}

}  // namespace stoch::serve
