// SPDX-License-Identifier: Apache-2.0
// Passes: who is in the next one, and what becomes of its jobs (scheduler.cc has the rest).
#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "engine/request/grammar_failure.h"
#include "engine/worker/scheduler.h"
#include "kernels/base/device_fault.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

constexpr int kBadRequest = 400;
constexpr std::chrono::milliseconds kMemoryPause{10};  // before memory is asked for again
// Of prompts, in a pass that others get their next token with: what an 8B model on a GPU takes 0.1 s for.
constexpr int64_t kRowsNextToDecoding = 512;

int64_t OutputRows(const StepItem& item) {
  if (item.output == StepOutput::kAll) return item.num_tokens;
  return item.output == StepOutput::kLast ? 1 : 0;
}

}  // namespace

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
    if (!running_[i].in_flight) order.push_back(i);
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
    while (engine_.steps_in_flight() < engine_.max_steps() && BeginPass()) {
    }
    engine_.Finish();
    pass = std::move(passes_.front());
    passes_.pop_front();
    Time(pass);
    for (const uint64_t id : pass.jobs) {
      if (Running* job = Find(id)) job->in_flight = false;
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
    if (engine_.steps_in_flight() == 0) {
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

// How long a finished pass took, for choosing drafts; where several are in flight, from the end of the one before it.
void Scheduler::Time(const Pass& pass) {
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double, std::milli> took = now - std::max(pass.began, finished_);
  finished_ = now;
  if (engine_.options().draft_tokens == 0) return;
  int64_t rows = 0;
  for (const StepItem& item : pass.items) rows += item.num_tokens;
  if (pass.prefills) {
    pass_times_.AddPrompt(rows, took.count());
  } else {
    pass_times_.Add(rows, took.count());
  }
}

// Drafts of the first jobs in order, as many as a pass takes.
std::vector<std::vector<DraftedToken>> Scheduler::DraftsOf(const std::vector<size_t>& order, size_t share) {
  std::vector<Generation*> next;
  if (engine_.options().draft_tokens > 0) {
    for (size_t i = 0; i < std::min(share, order.size()); ++i) next.push_back(running_[order[i]].generation.get());
  }
  if (!next.empty() && hooks_.on_passes) {  // a draft model may run passes for them
    std::vector<uint64_t> jobs;
    for (const Pass& pass : passes_) jobs.insert(jobs.end(), pass.jobs.begin(), pass.jobs.end());
    for (size_t i = 0; i < next.size(); ++i) jobs.push_back(running_[order[i]].id);
    hooks_.on_passes(jobs);
  }
  std::vector<std::vector<DraftedToken>> drafts = DraftsForPass(next, pass_times_);
  drafts.resize(order.size());
  return drafts;
}

bool Scheduler::BeginPass() {
  Pass pass;
  const auto lanes = static_cast<size_t>(engine_.max_steps());
  const size_t share = engine_.batch_invariant() ? (running_.size() + lanes - 1) / lanes : 1;
  int64_t budget = engine_.shape().max_rows;
  bool decodes = false;
  const std::vector<size_t> order = Order();
  const std::vector<std::vector<DraftedToken>> drafts = DraftsOf(order, share);
  for (size_t turn = 0; turn < order.size() && budget > 0 && pass.jobs.size() < share; ++turn) {
    Running& job = running_[order[turn]];
    if (job.generation == nullptr) continue;  // gave its pages to one before it
    const bool prefilling = job.generation->prefilling();
    if (decodes && prefilling) budget = std::min(budget, kRowsNextToDecoding);
    const StepItem item = job.generation->Next(budget, drafts[turn]);
    if (item.num_tokens == 0 || !MakeRoom(job, item, pass)) continue;
    pass.jobs.push_back(job.id);
    pass.items.push_back(item);
    budget -= item.num_tokens;
    decodes = decodes || !prefilling;
    pass.prefills = pass.prefills || prefilling;
  }
  RemoveEnded();  // the preempted ones
  if (pass.jobs.empty()) return false;
  ++turn_;
  pass.began = Clock::now();
  passes_.push_back(pass);
  ShowPasses();
  for (const uint64_t id : pass.jobs) Find(id)->in_flight = true;
  try {
    engine_.Begin(pass.items);
  } catch (const std::bad_alloc&) {
    // Refused before it changed anything, while other passes go on: its jobs come again.
    const bool others_go_on = engine_.steps_in_flight() + 1 == static_cast<int64_t>(passes_.size());
    if (!others_go_on || engine_.steps_in_flight() == 0) throw;
    for (const uint64_t id : pass.jobs) Find(id)->in_flight = false;
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
      job->in_flight = false;
      const StepItem& item = pass.items[i];
      const std::pair<int64_t, int64_t> size(item.num_tokens, item.sequence->computed());
      if (largest != nullptr && size <= most) continue;
      largest = job;
      most = size;
    }
  }
  if (largest != nullptr) Fail(*largest, kUnavailable, message);
}

// In a handler: what ends a job alone ends it; anything else is thrown on.
void Scheduler::FailAlone(Running& job) {
  try {
    throw;
  } catch (const GrammarFailure& error) {
    Fail(job, kBadRequest, error.what());
  } catch (const InvalidInput& error) {
    Fail(job, kInternalError, error.what());
  } catch (const DeviceRefusal& error) {
    Fail(job, kInternalError, error.what());
  } catch (const OutOfMemory& error) {
    Fail(job, kUnavailable, error.what());
  } catch (const std::bad_alloc&) {
    Fail(job, kInternalError, kOutOfMemory);
  }
}

void Scheduler::RunAlone(const Pass& pass) {
  for (size_t i = 0; i < pass.jobs.size(); ++i) {
    Running* job = Find(pass.jobs[i]);
    if (job == nullptr) continue;
    job->in_flight = false;
    try {
      if (hooks_.on_passes) hooks_.on_passes({&job->id, 1});
      engine_.Step({&pass.items[i], 1});
      AcceptAll({{job->id}, {pass.items[i]}});
    } catch (...) {
      FailAlone(*job);
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
    } catch (...) {
      FailAlone(*job);
    }
    row += OutputRows(pass.items[i]);
  }
}

}  // namespace stoch::serve
