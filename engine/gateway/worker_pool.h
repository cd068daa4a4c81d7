// SPDX-License-Identifier: Apache-2.0
// Runs jobs in worker processes, and brings every job to its end though workers die on the way.
//
// A job that a lost worker had goes on in another one from its prompt and the ids that were told, with the same bits
// (GenerateRequest::emitted). A job that the crash page names in the running pass of two losses, without a token in
// between, goes on in passes of its own; one that a third loss names ends with an error, and it alone. Where emitted ids
// are stepped again, losses at different ones of them do not add up. A worker that another process stopped, or ended by
// a signal that it could catch, is no request's fault. A kill -9 that neither this pool nor the kernel's out-of-memory
// killer sent, and a process that does not run at all, hardly are: four of them weigh as much as one other loss.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/gateway/worker_process.h"
#include "engine/request/answer_log.h"
#include "engine/request/fair_queue.h"
#include "engine/request/job_runner.h"
#include "engine/request/model_parts.h"
#include "engine/serve/log.h"

namespace stoch::serve {

class WorkerPool final : public JobRunner {
 public:
  struct Options {
    std::vector<std::vector<std::string>> commands;          // of one worker each, without the descriptors
    WorkerProcess::Kind kind = WorkerProcess::Kind::kChild;  // of all of them
    int64_t max_queue = 1024;                                // jobs that wait for a worker
    int64_t max_queue_per_client = INT64_MAX;                // of one client\'s
    // A worker that begins no operator of its pass for so long is killed.
    std::chrono::milliseconds stall_limit{0};  // 0: 10 s on GPUs, 120 s on CPUs
    // One that shows no life, though it did before, counts as silent after kSilentAfter and is killed after so long.
    std::chrono::milliseconds silence_limit{15'000};
    // Once a worker was ready: how long starts may fail, with no worker ready meanwhile, before this gives up. Time in
    // which a start still loads does not count.
    std::chrono::milliseconds give_up_after{60'000};
    // Parts of the model that this process has read: every worker has to have the same. Parts that the first worker has
    // besides count for all later ones.
    ModelParts parts;
    AnswerLog* answers = nullptr;  // what kept jobs bring is written there; outlives this
  };

  // Starts the workers.
  WorkerPool(Options options, LogSink log);
  // Kills the workers, and fails what is left.
  ~WorkerPool() override;

  // What the workers serve, once the first one is ready.
  std::optional<ServedModel> model() const;

  Submission Submit(std::vector<Job> jobs) override;
  void Cancel(uint64_t id) override;
  void Close() override;
  void Abort() override;
  bool Idle() const override;
  Health health() const override;
  Load load() const override;
  std::exception_ptr failure() const override;
  std::vector<Worker> workers() const override;
  Faults faults() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Replica {
    explicit Replica(boost::asio::io_context& io) : restart(io) {}
    size_t index = 0;
    std::unique_ptr<WorkerProcess> process;  // null between two
    boost::asio::steady_timer restart;
    bool is_waiting = false;          // for it
    bool is_unheard = false;          // a message was lost: none after it counts, or an answer would have a hole
    std::optional<ipc::Hello> hello;  // of the process; none while it loads
    std::string failure;              // what the process said of its end
    bool lost_rank = false;           // and whether that was another process's
    int exit_code = 0;
    std::set<uint64_t> jobs;
    int64_t restarts = 0;
    int losses = 0;         // since a token came
    int failed_starts = 0;  // since it was ready
    Clock::time_point ready_since;
    ipc::CrashReport seen;
    Clock::duration silent{0}, stuck{0};  // since `alive` and `progress` of it changed, as far as this pool ran
    bool is_dead = false;                 // or about to be, and not all that it said has been heard
    bool is_silent = false;
    bool is_running() const { return process != nullptr && !is_dead; }
    bool is_ready() const { return hello && is_running() && !is_silent; }
    const char* state() const;
    bool stalled = false;
    bool stopped = false;             // by another process, and so stalled
    int64_t out_of_memory_kills = 0;  // of the system, when the process began
    Load load;
    int64_t device_bytes = 0, device_used_bytes = 0;  // that it saw last
    double rank_waited_seconds = 0;                   // of all its processes
  };
  static constexpr int kBlame = 4;
  static constexpr std::chrono::milliseconds kSilentAfter{5000};
  static constexpr std::string_view kNoWorker = "no worker can be started; the server is going down";
  struct PoolJob {
    Job job;
    Clock::time_point arrival;
    double queue_seconds = 0;
    std::vector<int32_t> emitted;
    Replica* replica = nullptr;  // null: waits
    bool begun = false;          // by a worker, at any time
    int losses = 0;              // of workers in its passes, all of them at the same token
    int blame = 0;               // of those, kBlame each, less for a kill
    bool runs_alone() const { return blame >= 2 * kBlame; }
    bool runs_blocking() const { return losses > 0; }  // so that the next one names the operator
    int64_t stepped_again = 0;                         // emitted ids that its worker has stepped again
    int64_t blamed_at = 0;                             // what that was when it was blamed last
  };
  struct Notice {
    std::function<void(JobUpdate)> on_update;
    JobUpdate update;
    KeptAs kept;
  };
  using Told = std::vector<Notice>;

  // Any thread: jobs leave for their workers on that of their client, which saves waking another one.
  void Dispatch();
  Replica* FreeReplica();
  bool Begin(uint64_t id, PoolJob& job, Replica& replica, Told* told);

  // The pool's thread.
  void Run();
  void Mend();
  void SayError(const char* what) noexcept;
  void StartWorker(Replica& replica);
  void StartLater(Replica& replica);
  void OnMessage(Replica& replica, const ipc::FromWorker& message);
  void OnHello(Replica& replica, const ipc::Hello& hello);
  void Take(PoolJob& job, Replica& replica, const ipc::Update& message, Told* told);
  void Forget(uint64_t id, Replica& replica) noexcept;
  std::string NameOf(uint64_t id) const;  // for logs
  void OnDeath(Replica& replica);
  void OnEnd(Replica& replica, const std::string& how);
  int BlameOf(const Replica& replica, const ipc::CrashReport& report, const std::string& how) const;
  void Settle(Replica& replica, const ipc::CrashReport& report, int blame, Told* told);
  bool Blame(PoolJob& job, uint64_t id, const ipc::CrashReport& report, int blame, Told* told);
  void Watch();
  void WatchOne(Replica& replica, Clock::duration elapsed);
  void WatchStarts(Clock::duration elapsed);
  void SetSilent(Replica& replica, bool is_silent);
  std::chrono::milliseconds StallLimit(const Replica& replica) const;
  std::chrono::milliseconds SilenceLimit(const Replica& replica) const;
  static std::string Place(const ipc::CrashReport& report);
  void GiveUp(std::exception_ptr why, std::string_view told_as);

  void FailAll(int status, std::string_view message, Told* told);
  void End(uint64_t id);
  void Keep(const Told& told);
  void Tell(Told told);
  static Notice LastOf(PoolJob& job, int status, std::string_view message) noexcept;

  const Options options_;
  const LogSink log_;
  boost::asio::io_context io_;
  boost::asio::steady_timer watch_;
  // The pool's thread.
  Clock::time_point watched_ = Clock::now();
  Clock::duration failing_for_{0};   // starts, with no worker that is ready or loads
  std::string last_failure_;         // why the last start did
  std::optional<ModelParts> parts_;  // of all workers, once the first one is ready

  mutable std::mutex mutex_;  // of everything below; never held while jobs are told
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::map<uint64_t, PoolJob> jobs_;
  FairQueue waiting_;  // jobs without a worker
  std::optional<ServedModel> model_;
  Faults faults_;
  uint64_t next_id_ = 1;
  bool closed_ = false;
  bool failing_ = false;
  std::exception_ptr failure_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace stoch::serve
