#include "engine/serve/scheduler.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{1000};  // of an idle engine, at most
constexpr int kBadRequest = 400;
constexpr int kInternalError = 500;
constexpr int kUnavailable = 503;

int64_t OutputRows(const StepItem& item) {
  if (item.output == StepOutput::kAll) return item.num_tokens;
  return item.output == StepOutput::kLast ? 1 : 0;
}

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Scheduler::Scheduler(Engine& engine, const Tokenizer* tokenizer, const Options& options, Metrics& metrics)
    : engine_(engine), tokenizer_(tokenizer), options_(options), metrics_(metrics), heartbeat_(Clock::now()) {
  running_.reserve(static_cast<size_t>(engine.options().max_sequences));
  if (options.prefix_reuse && engine.chunk_invariant()) prefixes_ = std::make_unique<PrefixCache>(engine);
  thread_ = std::thread([this] { Run(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = abort_ = stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// ------------------------------------------------------------------------------------------------- any thread ----

Scheduler::Submission Scheduler::Submit(std::vector<Job> jobs) {
  const Clock::time_point now = Clock::now();
  Submission submission;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return {Refusal::kFailed, 0};
    if (closed_) return {Refusal::kClosed, 0};
    if (static_cast<int64_t>(queue_.size() + jobs.size()) > options_.max_queue) return {Refusal::kFull, 0};
    submission.first = next_id_;
    for (Job& job : jobs) queue_.push_back({next_id_++, std::move(job), now});
    metrics_.SetWaiting(static_cast<int64_t>(queue_.size()));
  }
  wake_.notify_all();
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
    metrics_.SetWaiting(static_cast<int64_t>(queue_.size()));
    metrics_.CountFinished("cancelled");
  }
  wake_.notify_all();
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
  wake_.notify_all();
}

bool Scheduler::Idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && active_ == 0;
}

Scheduler::Health Scheduler::health() const {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) return Health::kFailed;
  return Clock::now() - heartbeat_ > options_.stalled_after ? Health::kStalled : Health::kOk;
}

std::exception_ptr Scheduler::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// ---------------------------------------------------------------------------------------- the engine's thread ----

void Scheduler::Run() {
  try {
    Loop();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      closed_ = true;
    }
    FailAll(kUnavailable, "the engine failed; the server is going down");
  }
}

void Scheduler::Loop() {
  const auto heartbeat = std::min(kHeartbeat, options_.stalled_after / 4);
  for (;;) {
    std::unordered_set<uint64_t> cancelled;
    bool abort = false;
    {
      std::unique_lock lock(mutex_);
      while (running_.empty() && passes_.empty() && queue_.empty() && cancelled_.empty() && !abort_) {
        heartbeat_ = Clock::now();
        wake_.wait_for(lock, heartbeat);
      }
      heartbeat_ = Clock::now();
      cancelled.swap(cancelled_);
      abort = abort_;
    }
    DropCancelled(cancelled);
    if (abort) FailAll(kUnavailable, "the server is shutting down");
    Admit();
    ShowGauges();  // a pass may take long
    if (!running_.empty() || !passes_.empty()) StepOnce();
    ShowGauges();
    if (!abort) continue;
    while (!passes_.empty()) StepOnce();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    abort_ = false;  // closed_ stays: nothing new arrives
  }
}

void Scheduler::DropCancelled(const std::unordered_set<uint64_t>& cancelled) {
  if (cancelled.empty()) return;
  for (Running& job : running_) {
    if (!cancelled.contains(job.id)) continue;
    metrics_.CountFinished("cancelled");
    ended_.insert(job.id);
  }
  RemoveEnded();
}

int64_t Scheduler::PlannedTokens(const GenerateRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = engine_.shape().context - prompt;
  const int64_t tokens = prompt + (request.max_tokens < 0 ? room : std::min(request.max_tokens, room));
  return (tokens + kKvPageTokens - 1) / kKvPageTokens * kKvPageTokens;
}

std::optional<Scheduler::Queued> Scheduler::NextAdmissible() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || static_cast<int64_t>(running_.size()) >= engine_.options().max_sequences) return std::nullopt;
  // The oldest job or none: smaller ones behind it do not overtake, so it is sure to get its pages.
  if (!HasRoom(queue_.front().job.request)) return std::nullopt;
  Queued queued = std::move(queue_.front());
  queue_.pop_front();
  ++active_;
  return queued;
}

bool Scheduler::HasRoom(const GenerateRequest& request) {
  const int64_t planned = PlannedTokens(request);
  if (prefixes_ == nullptr || planned <= engine_.free_tokens()) return planned <= engine_.free_tokens();
  // While `known` holds its pages they do not count as free.
  const PrefixCache::Match known = prefixes_->Find(request.prompt, request.prompt_logprobs ? request.top_logprobs : -1);
  return planned - static_cast<int64_t>(known.pages.size()) * kKvPageTokens <= prefixes_->free_tokens();
}

void Scheduler::Admit() {
  while (std::optional<Queued> queued = NextAdmissible()) Start(std::move(*queued));
  RemoveEnded();
}

void Scheduler::Start(Queued queued) {
  const auto prompt_tokens = static_cast<int64_t>(queued.job.request.prompt.size());
  metrics_.ObserveQueueTime(Seconds(Clock::now() - queued.arrival));
  Running job;
  job.id = queued.id;
  job.on_update = std::move(queued.job.on_update);
  job.arrival = queued.arrival;
  try {
    job.generation = std::make_unique<Generation>(engine_, tokenizer_, std::move(queued.job.request), prefixes_.get());
  } catch (const InvalidInput& error) {
    // Requests are checked before they are queued: this one slipped through, and alone pays for it.
    Fail(job, kBadRequest, error.what());
    const std::lock_guard lock(mutex_);
    --active_;
    return;
  }
  metrics_.AddPromptTokens(prompt_tokens);
  metrics_.AddReusedTokens(job.generation->prompt_reused());
  running_.push_back(std::move(job));
  if (running_.back().generation->done()) Report(running_.back());
}

// Whose turn it is, most urgent first, of those that are not under way.
std::vector<size_t> Scheduler::Order() const {
  const auto in_prompt = [this](size_t i) {
    return running_[i].generation->prompt_done() < running_[i].generation->prompt_tokens();
  };
  std::vector<size_t> order;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i].under_way) order.push_back(i);
  }
  if (!engine_.batch_invariant() && !order.empty()) return {order[turn_ % order.size()]};
  // Chunks of prompts fill what decoding leaves. A prompt that must be one window goes first, or it might never fit;
  // that delays decoding by one pass per prompt.
  const bool prompts_last = engine_.chunk_invariant();
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return in_prompt(i) != prompts_last; });
  return order;
}

void Scheduler::StepOnce() {
  try {
    while (engine_.steps_under_way() < engine_.max_steps() && BeginPass()) {
    }
    engine_.Finish();
    const Pass pass = std::move(passes_.front());
    passes_.pop_front();
    for (const uint64_t id : pass.jobs) {
      if (Running* job = Find(id)) job->under_way = false;
    }
    AcceptAll(pass);
  } catch (const InvalidInput&) {
    // Somebody's activations met NaN. All sequences are as before every pass under way; each alone gives the same bits,
    // and only the guilty one fails.
    for (const Pass& failed : std::exchange(passes_, {})) RunAlone(failed);
  } catch (const OutOfMemory& error) {
    FailLargest(std::exchange(passes_, {}), error.what());
  }
  RemoveEnded();
}

bool Scheduler::BeginPass() {
  Pass pass;
  const auto lanes = static_cast<size_t>(engine_.max_steps());
  const size_t share = (running_.size() + lanes - 1) / lanes;
  int64_t budget = engine_.shape().max_rows;
  for (const size_t i : Order()) {
    if (budget == 0 || pass.jobs.size() == share) break;
    Running& job = running_[i];
    const StepItem item = job.generation->Next(budget);
    if (item.num_tokens == 0) continue;
    pass.jobs.push_back(job.id);
    pass.items.push_back(item);
    budget -= item.num_tokens;
  }
  if (pass.jobs.empty()) return false;
  ++turn_;
  for (const uint64_t id : pass.jobs) Find(id)->under_way = true;
  passes_.push_back(pass);
  engine_.Begin(pass.items);
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
      engine_.Step({&pass.items[i], 1});
      AcceptAll({{job->id}, {pass.items[i]}});
    } catch (const InvalidInput& error) {
      Fail(*job, kInternalError, error.what());
    } catch (const OutOfMemory& error) {
      Fail(*job, kUnavailable, error.what());
    }
  }
}

// Throws no InvalidInput, and no OutOfMemory: a job whose logits cannot be used fails alone.
void Scheduler::AcceptAll(const Pass& pass) {
  int64_t row = 0;
  for (size_t i = 0; i < pass.jobs.size(); ++i) {
    Running* job = Find(pass.jobs[i]);
    try {
      if (job != nullptr) job->generation->Accept(pass.items[i], row);
      if (job != nullptr) Report(*job);
    } catch (const InvalidInput& error) {
      Fail(*job, kInternalError, error.what());
    } catch (const OutOfMemory& error) {
      Fail(*job, kUnavailable, error.what());
    }
    row += OutputRows(pass.items[i]);
  }
}

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
  metrics_.CountFinished("error");
  ended_.insert(job.id);
  JobUpdate update;
  update.error_status = status;
  update.error = message;
  job.on_update(std::move(update));
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
  for (Queued& queued : queue) {
    metrics_.CountFinished("error");
    JobUpdate update;
    update.error_status = status;
    update.error = message;
    queued.job.on_update(std::move(update));
  }
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
