// Continuous batching: the one thread that touches the engine, and the queue in front of it.
//
// Jobs (one sequence each) are admitted in order of arrival as soon as the pages of the whole sequence are free, so a
// running job never runs out of memory. Between two passes jobs join and leave. Where the configuration is
// chunk-invariant every pass holds one token of each decoding job and prompt chunks of the oldest prompts; elsewhere
// a prompt is one window; where rows are coupled a pass holds one job. Where the engine takes several passes at once,
// each holds its share of the jobs. Prompts that begin like earlier ones reuse their pages, where the configuration is
// chunk-invariant (engine/prefix_cache.h). Bits: tokens and logprobs of a job are those of Generate() on its request
// alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/generate.h"
#include "engine/serve/metrics.h"

namespace stoch::serve {

// What one pass brought for a job. ids, logprobs and text follow those of the update before.
struct JobUpdate {
  std::vector<std::optional<TokenLogprob>> prompt_logprobs;  // once, where asked for
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;  // per id, where asked for
  std::string logits_sha256;           // with the last one, where asked for
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int error_status = 0;  // HTTP status where the job failed; it has ended then
  std::string error;
  bool last() const { return finish != FinishReason::kNone || error_status != 0; }
};

struct Job {
  // Called once, when the job's turn comes: jobs of one request share what it holds for as long as they wait. On any
  // thread.
  std::function<GenerateRequest()> request;
  // Called on the engine's thread, which waits for it: hand over and return. No call follows a last() one.
  std::function<void(JobUpdate update)> on_update;
};

enum class Refusal : uint8_t {
  kNone,
  kFull,    // the queue has no room for these jobs now
  kClosed,  // draining or stopped
  kFailed,  // the engine's thread has ended
};

class Scheduler {
 public:
  struct Options {
    int64_t max_queue = 1024;                          // jobs that wait for admission
    std::chrono::milliseconds stalled_after{120'000};  // a pass that takes longer counts as dead
    bool prefix_reuse = true;                          // where the configuration is chunk-invariant
  };
  struct Submission {
    Refusal refusal = Refusal::kNone;
    uint64_t first = 0;  // id of the first job; the others follow it
  };
  enum class Health : uint8_t { kOk, kStalled, kFailed };

  // Starts the thread. engine, tokenizer (may be null) and metrics outlive this; nobody else uses the engine.
  Scheduler(Engine& engine, const Tokenizer* tokenizer, const Options& options, Metrics& metrics);
  // Fails what is left and joins.
  ~Scheduler();

  // Any thread, without waiting for the engine:
  // What: queues all of `jobs` or none.
  Submission Submit(std::vector<Job> jobs);
  // What: ends a job without another update: a queued one at once, a running one (its pages too) after the pass that
  //       is under way. Unknown and ended ids are ignored.
  void Cancel(uint64_t id);
  // What: refuses new jobs from now on; those there are go on.
  void Close();
  // What: fails all jobs with 503 after the pass that is under way.
  void Abort();
  bool Idle() const;  // no job queued or running
  Health health() const;
  // What: what ended the engine's thread, once every job has been told; null while it is well.
  std::exception_ptr failure() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Queued {
    uint64_t id = 0;
    Job job;
    Clock::time_point arrival;
    std::unique_ptr<GenerateRequest> request;  // of the oldest one
  };
  struct Running {
    uint64_t id = 0;
    std::function<void(JobUpdate)> on_update;
    Clock::time_point arrival;
    Clock::time_point last_token;
    std::unique_ptr<Generation> generation;
    bool under_way = false;  // in a pass that has begun
    size_t reported = 0;     // ids handed over
    bool prompt_reported = false;
  };

  // A pass that has begun; jobs may have ended since.
  struct Pass {
    std::vector<uint64_t> jobs;
    std::vector<StepItem> items;
  };

  void Run();
  void Loop();
  void DropCancelled(const std::unordered_set<uint64_t>& cancelled);
  void Admit();
  std::optional<Queued> NextAdmissible();
  bool HasRoom(const GenerateRequest& request);
  void FailOldest();
  void Start(Queued queued);
  std::vector<size_t> Order() const;
  void StepOnce();
  bool BeginPass();  // false: no job is left to begin with
  Running* Find(uint64_t id);
  void AcceptAll(const Pass& pass);
  void RunAlone(const Pass& pass);
  void FailLargest(const std::deque<Pass>& passes, const std::string& message);
  void Report(Running& job);
  void Fail(Running& job, int status, const std::string& message);
  void RemoveEnded();
  void FailJob(const std::function<void(JobUpdate)>& on_update, int status, const std::string& message);
  void FailAll(int status, const std::string& message);
  void ShowGauges();
  int64_t PlannedTokens(const GenerateRequest& request) const;

  Engine& engine_;
  const Tokenizer* tokenizer_;
  const Options options_;
  Metrics& metrics_;

  // The engine's thread only.
  std::unique_ptr<PrefixCache> prefixes_;  // null where prefixes are not reused
  std::vector<Running> running_;           // in order of arrival
  std::deque<Pass> passes_;                // under way
  std::unordered_set<uint64_t> ended_;
  size_t turn_ = 0;  // whose pass comes next where rows are coupled

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queued> queue_;
  std::unordered_set<uint64_t> cancelled_;
  uint64_t next_id_ = 1;
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
