// SPDX-License-Identifier: Apache-2.0
// Continuous batching: the one thread that touches the engine, and the queue in front of it.
//
// Jobs (one sequence each) are admitted client by client in turn, those of one client in order of arrival, as soon as the
// pages of what they begin with are free, and take more as they grow. Where there are none left, the job that was admitted
// last gives all of its pages back and waits for its turn to go on from its prompt and the ids so far, with the same bits:
// so the one that was admitted first always gets on. Where the precision promises no bits, a job is admitted once its whole
// sequence can be reserved. Between two passes jobs join and leave. Where the configuration is chunk-invariant every pass
// holds one token of each decoding job and prompt chunks of the oldest prompts; elsewhere a prompt is one window; where rows
// are coupled a pass holds one job. Where the engine takes several passes at once, each holds its share of the jobs. Prompts
// that begin like earlier ones reuse their pages, where the configuration is chunk-invariant (engine/prefix_cache.h). Bits:
// tokens and logprobs of a job are those of Generate() on its request alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/generate.h"
#include "engine/request/fair_queue.h"
#include "engine/request/job_runner.h"
#include "engine/speculation/draft_lengths.h"

namespace stoch::serve {

// Who looks on; called on the engine's thread, or empty.
struct SchedulerHooks {
  std::function<void(std::span<const uint64_t> jobs)> on_passes;  // the jobs in flight have changed
  std::function<void()> after_turn;                               // every job has been told of a pass, or of its end
  // Where jobs come on the engine's own thread, both of these. Returns after so long, or earlier where something may
  // have come; 0: called between two passes.
  std::function<void(std::chrono::milliseconds longest)> wait;
  std::function<void()> wake;  // has it return, from any thread
};

class Scheduler final : public JobRunner {
 public:
  // Starts the thread. engine outlives this; nobody else uses it.
  explicit Scheduler(Engine& engine, const RunnerOptions& options, SchedulerHooks hooks = {});
  // Fails what is left and joins.
  ~Scheduler() override;

  Submission Submit(std::vector<Job> jobs) override;
  void Cancel(uint64_t id) override;
  void Close() override;
  void Abort() override;
  bool Idle() const override;
  Health health() const override;
  Load load() const override;
  Faults faults() const override;
  std::exception_ptr failure() const override;

 private:
  // What a job is told that ends before its time.
  static constexpr int kInternalError = 500;
  static constexpr int kUnavailable = 503;
  static constexpr const char* kOutOfMemory = "out of memory";

  using Clock = std::chrono::steady_clock;
  struct Queued {
    uint64_t id = 0;
    Job job;
    Clock::time_point arrival;
    std::unique_ptr<GenerateRequest> request;  // of the next one, and of one that is to go on
    std::optional<double> queue_seconds;       // until it was admitted first
    bool begun = false;                        // as in Running
    uint64_t age = 0;                          // likewise; 0: it has not been admitted
  };
  struct Running {
    uint64_t id = 0;
    std::function<void(JobUpdate)> on_update;
    Clock::time_point arrival;
    double queue_seconds = 0;
    std::unique_ptr<Generation> generation;  // null: preempted, and about to leave
    bool in_flight = false;                  // in a pass that has begun
    size_t reported = 0;                     // ids handed over
    DraftCounts drafts;                      // of them
    bool begun = false;                      // an update has been
    bool hashes = false;                     // its logits
    bool alone = false;                      // as in Job
    uint64_t age = 0;                        // when it was admitted first: 1, 2, 3, ...
  };

  // A pass that has begun; jobs may have ended since.
  struct Pass {
    std::vector<uint64_t> jobs;
    std::vector<StepItem> items;
    bool prefills = false;  // a job in it has tokens left that it began with
    Clock::time_point began = {};
  };

  void Run();
  void Loop();
  void Wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds longest);
  void Wake();
  bool Unqueue(uint64_t id);
  void DropCancelled(const std::unordered_set<uint64_t>& cancelled);
  void Admit();
  std::optional<Queued> NextAdmissible();
  bool HasRoom(const GenerateRequest& request);
  void FailNext();
  void Start(Queued queued);
  std::vector<size_t> Order() const;
  void StepOnce();
  std::vector<std::vector<DraftedToken>> DraftsOf(const std::vector<size_t>& order, size_t share);
  void Time(const Pass& pass);
  bool BeginPass();  // false: no job is left to begin with
  bool MakeRoom(Running& job, const StepItem& item, const Pass& pass);
  Running* Victim(const Running& job, const Pass& pass);
  void Preempt(Running& job);
  void Queue(Running& job);
  Running* Find(uint64_t id);
  void AcceptAll(const Pass& pass);
  void RunAlone(const Pass& pass);
  void FailLargest(const std::deque<Pass>& passes, const std::string& message);
  void Report(Running& job);
  void FailAlone(Running& job);
  void Fail(Running& job, int status, const std::string& message);
  void RemoveEnded();
  void FailJob(const std::function<void(JobUpdate)>& on_update, int status, const std::string& message);
  void FailAll(int status, const std::string& message);
  void ShowLoad();
  void ShowPasses();
  void MarkFailing();
  int64_t PlannedTokens(const GenerateRequest& request) const;
  int64_t GrowthTokens() const;

  Engine& engine_;
  const RunnerOptions options_;
  const SchedulerHooks hooks_;
  const bool reserves_;  // whole sequences

  // The engine's thread only.
  std::unique_ptr<PrefixCache> prefixes_;  // null where prefixes are not reused
  std::vector<Running> running_;           // in order of age
  std::deque<Pass> passes_;                // in flight
  std::unordered_set<uint64_t> ended_;
  uint64_t next_age_ = 1;
  PassTimes pass_times_;
  Clock::time_point finished_ = {};  // the last pass
  size_t turn_ = 0;                  // whose pass comes next where rows are coupled

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Queued> queue_;
  FairQueue turns_;  // of the same jobs
  std::unordered_set<uint64_t> cancelled_;
  uint64_t next_id_ = 1;
  Load load_;
  int64_t preemptions_ = 0;
  int64_t active_ = 0;  // jobs out of the queue and not ended
  bool closed_ = false;
  bool abort_ = false;
  bool stop_ = false;
  Clock::time_point heartbeat_;
  bool failing_ = false;        // the engine's thread ends: no new jobs
  std::exception_ptr failure_;  // set once every job has been told

  std::thread thread_;  // last: it uses everything above
};

}  // namespace stoch::serve
