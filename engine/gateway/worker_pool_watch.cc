// SPDX-License-Identifier: Apache-2.0
// Watches the workers of the pool: what they serve, whether they get on and live, and whether starts lead anywhere.

#include <algorithm>
#include <new>
#include <utility>

#include "engine/gateway/worker_pool.h"
#include "engine/ipc/convert.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kWatch{100};
constexpr seconds kStoppedLauncher{
    5};  // then nobody ends a job that has lost a rank: what stands still for so long has
constexpr milliseconds kLongestWatch{500};  // what one of them counts at most: this process may have been stopped too

std::string Seconds(std::chrono::steady_clock::duration time) {
  return std::to_string(std::chrono::duration_cast<seconds>(time).count());
}

}  // namespace

const char* WorkerPool::Replica::state() const {
  if (!is_running()) return "lost";
  if (is_silent) return "silent";
  return hello ? "ready" : "loading";
}

// A worker of another model gets no job: what clients have heard was another one's.
void WorkerPool::OnHello(Replica& replica, const ipc::Hello& hello) {
  ModelParts parts = ipc::PartsOf(hello);
  const std::string changed = ChangedPart(parts_ ? *parts_ : options_.parts, parts, !parts_);
  const std::string pid = std::to_string(replica.process->pid());
  if (!changed.empty()) {
    log_({LogLevel::kError, "model_changed", {{"part", changed}, {"pid", pid}}});
    replica.process->Kill();
    GiveUp(std::make_exception_ptr(DeviceError(changed + " was changed while it was served")),
           "the model was changed while it was served; the server is going down");
    return;
  }
  if (!parts_) parts_ = std::move(parts);
  const ServedModel model = ipc::FromMessage(hello);
  failing_for_ = Clock::duration(0);
  {
    const std::lock_guard lock(mutex_);
    replica.hello = hello;
    replica.failed_starts = 0;
    replica.ready_since = Clock::now();
    if (!model_) model_ = model;
  }
  log_({LogLevel::kInfo, "worker_ready", {{"pid", pid}, {"device", model.device}}});
  Dispatch();
}

void WorkerPool::Watch() {
  const Clock::time_point now = Clock::now();
  const Clock::duration elapsed = std::min<Clock::duration>(now - std::exchange(watched_, now), kLongestWatch);
  watch_.expires_after(kWatch);
  watch_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Watch();
  });
  try {
    for (const auto& replica : replicas_) WatchOne(*replica, elapsed);
    WatchStarts(elapsed);
    Dispatch();
  } catch (const std::bad_alloc&) {  // the next time
  }
}

milliseconds WorkerPool::StallLimit(const Replica& replica) const {
  constexpr seconds kGpu{10}, kCpu{120};
  if (options_.stall_limit.count() > 0) return options_.stall_limit;
  return replica.hello && replica.hello->device().starts_with("cuda") ? kGpu : kCpu;
}

// Whoever asks for a shorter stall limit waits no longer for a sign of life. Until the first one the program itself is
// being loaded, from a disk that may be slow.
milliseconds WorkerPool::SilenceLimit(const Replica& replica) const {
  const milliseconds stall_limit = StallLimit(replica);
  if (replica.seen.alive == 0) return std::max(options_.silence_limit, stall_limit);
  return options_.stall_limit.count() > 0 ? std::min(options_.silence_limit, stall_limit) : options_.silence_limit;
}

void WorkerPool::WatchOne(Replica& replica, Clock::duration elapsed) {
  if (replica.process != nullptr) replica.process->Look();
  if (replica.process == nullptr || replica.stalled) return;
  ipc::CrashReport report = replica.process->Report();
  const bool alive = report.alive != replica.seen.alive;
  const bool on = report.progress != replica.seen.progress || !report.in_pass;
  replica.silent = alive ? Clock::duration(0) : replica.silent + elapsed;
  replica.stuck = on ? Clock::duration(0) : replica.stuck + elapsed;
  replica.seen = std::move(report);
  const milliseconds silence_limit = SilenceLimit(replica);
  SetSilent(replica, replica.seen.alive != 0 && replica.silent >= std::min(kSilentAfter, silence_limit));
  const bool is_on_its_own = replica.stuck >= kStoppedLauncher && replica.process->IsLauncherStopped();
  if (replica.silent < silence_limit && replica.stuck < StallLimit(replica) && !is_on_its_own) return;
  replica.stalled = true;
  replica.stopped = replica.process->IsStopped();
  replica.process->Kill();
  log_({LogLevel::kError,
        "worker_stalled",
        {{"pid", std::to_string(replica.process->pid())},
         {"at", replica.seen.in_pass ? Place(replica.seen) : "no pass"},
         {"silent_s", Seconds(replica.silent)}}});
}

void WorkerPool::SetSilent(Replica& replica, bool is_silent) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(replica.is_silent, is_silent) == is_silent) return;
  }
  const std::string pid = std::to_string(replica.process->pid());
  if (is_silent) {
    log_({LogLevel::kWarning, "worker_silent", {{"pid", pid}, {"silent_s", Seconds(replica.silent)}}});
  } else {
    log_({LogLevel::kInfo, "worker_back", {{"pid", pid}}});
    Dispatch();
  }
}

// Losses of ready workers are none of it: they are replaced for as long as their successors become ready.
void WorkerPool::WatchStarts(Clock::duration elapsed) {
  {
    const std::lock_guard lock(mutex_);
    if (failing_) return;
    for (const auto& replica : replicas_) {
      if (replica->failed_starts == 0 || replica->is_running()) return;
    }
  }
  failing_for_ += elapsed;
  if (failing_for_ < options_.give_up_after) return;
  GiveUp(std::make_exception_ptr(
             DeviceError("starts of workers failed for " + Seconds(failing_for_) + " s, at last: " + last_failure_)),
         kNoWorker);
}

}  // namespace stoch::serve
