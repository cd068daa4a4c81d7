// SPDX-License-Identifier: Apache-2.0
// Who runs generations for the HTTP server: the scheduler of an engine in this process (engine/worker/scheduler.h), or
// worker processes (engine/gateway/worker_pool.h). Ids go in and ids come out; text is made above.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/request/request.h"

namespace stoch::serve {

// What one pass brought for a job. ids and logprobs follow those of the update before.
struct JobUpdate {
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;  // once, where asked for
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;  // per id, where asked for
  std::string logits_sha256;           // of all ids so far, where asked for
  FinishReason finish = FinishReason::kNone;
  // Guessed tokens that the pass checked, and those of them that were right.
  int64_t drafted = 0;
  int64_t drafts_accepted = 0;
  int error_status = 0;  // HTTP status where the job failed; it has ended then
  std::string error;
  // Of the first update.
  double queue_seconds = 0;   // from arrival to admission
  int64_t reused_tokens = 0;  // of the prompt, that needed no computing
  // The thread that tells of it has nothing else to do: a little work may be done on it, which saves waking another.
  bool has_time = false;
  bool last() const { return finish != FinishReason::kNone || error_status != 0; }
};

// An answer that an AnswerLog keeps (engine/request/answer_log.h), for one of those that run it, one after another.
struct AnswerKey {
  int64_t number = 0;  // 0: it is not kept
  uint64_t run = 0;    // what earlier ones bring is not kept
};

// What a job brings, where it is kept.
struct KeptAs {
  AnswerKey answer;
  size_t choice = 0;
};

struct Job {
  // Called when the job's turn comes, and again where it has to be begun once more: jobs of one request share what it
  // holds for as long as they wait. On any thread.
  std::function<GenerateRequest()> request;
  // Called on a thread of the runner, which waits for it: hand over and return, but for JobUpdate::has_time. No call
  // follows a last() one.
  std::function<void(JobUpdate update)> on_update;
  KeptAs kept = {};
  std::string name = {};    // for logs: whose it is
  std::string client = {};  // who asks: clients that wait take turns (engine/request/fair_queue.h)
  bool alone = false;       // in passes of its own, until one brings a token: those before ended in a loss
};

enum class Refusal : uint8_t {
  kNone,
  kFull,           // the queue has no room for these jobs now
  kFullForClient,  // nor has this client's share of it, though the queue may have some
  kClosed,         // draining or stopped
  kFailed,         // the runner has ended
};

struct RunnerOptions {
  int64_t max_queue = 1024;                          // jobs that wait for admission
  int64_t max_queue_per_client = INT64_MAX;          // of one client's
  std::chrono::milliseconds stalled_after{120'000};  // a pass that takes longer counts as dead
  bool prefix_reuse = true;                          // where the configuration is chunk-invariant
};

// Threads: any, several at once; no call waits for a pass.
class JobRunner {
 public:
  struct Submission {
    Refusal refusal = Refusal::kNone;
    uint64_t first = 0;  // id of the first job; the others follow it
  };
  enum class Health : uint8_t { kOk, kLoading, kSilent, kStalled, kFailed };
  struct Load {
    int64_t running = 0;  // sequences
    int64_t waiting = 0;
    double kv_usage = 0;  // share of the cache's pages that sequences hold, 0..1
  };

  // One process that runs jobs.
  struct Worker {
    int64_t pid = 0;    // 0: none just now
    std::string state;  // "ready", "loading", "silent", "lost"
    int64_t restarts = 0;
    std::string device;
    // Of its devices together, as it saw them last; 0: not known.
    int64_t device_bytes = 0;
    int64_t device_used_bytes = 0;  // by all processes
    // On ranks: of a row from each one to the next, from the last one to rank 0.
    std::vector<double> hop_seconds = {};
    double rank_waited_seconds = 0;  // that all rank 0s of it have waited for rows of other ranks, so far
  };
  // So far.
  struct Faults {
    int64_t restarts = 0;     // of workers
    int64_t replays = 0;      // of jobs, after a loss
    int64_t refused = 0;      // jobs that were blamed for losses
    int64_t preemptions = 0;  // jobs that gave the pages of their cache back for older ones, and went on later
    int64_t ranks_lost =
        0;  // launched workers that ended, any of whose ranks may have been the first, once they served
  };

  virtual ~JobRunner() = default;  // fails what is left

  // Queues all of `jobs` or none.
  virtual Submission Submit(std::vector<Job> jobs) = 0;
  // Ends a job without another update: a queued one at once, a running one (its pages too) after the pass that is in
  // flight. Unknown and ended ids are ignored.
  virtual void Cancel(uint64_t id) = 0;
  // Refuses new jobs from now on; those there are go on.
  virtual void Close() = 0;
  // Fails all jobs with 503 after the pass that is in flight.
  virtual void Abort() = 0;
  virtual bool Idle() const = 0;  // no job queued or running
  virtual Health health() const = 0;
  virtual Load load() const = 0;
  virtual std::vector<Worker> workers() const { return {}; }  // none: this process
  virtual Faults faults() const { return {}; }
  // What ended the runner, once every job has been told; null while it is well.
  virtual std::exception_ptr failure() const = 0;
};

// What the server says of a model, and checks requests against.
struct ServedModel {
  std::string name;
  int64_t vocab_size = 0;
  int64_t context = 0;                // longest sequence, the KV cache's size counted
  std::string precision, sc, device;  // for people
  int64_t kv_tokens = 0;              // of all sequences together
};

}  // namespace stoch::serve
