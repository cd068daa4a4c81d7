// SPDX-License-Identifier: Apache-2.0
// Log-likelihoods of continuations, many requests at once, and perplexity.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "python/src/model.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

// One request on its way. Row i of the sequence predicts ids[i + 1]; the rows from first_row on are scored.
struct Job {
  size_t index = 0;
  std::vector<int32_t> ids;
  int64_t first_row = 0;
  std::unique_ptr<Sequence> sequence;
  RowQueries queries;

  int64_t rows() const { return static_cast<int64_t>(ids.size()) - 1; }
};

void Check(const LoadedModel& model, const ScoreRequest& request, size_t index) {
  const std::string where = "request " + std::to_string(index) + ": ";
  const DecoderConfig& config = model.engine->config();
  if (request.context.empty()) throw InvalidInput(where + "its context is empty: at least one token is needed");
  if (request.continuation.empty()) throw InvalidInput(where + "its continuation is empty");
  const auto length = static_cast<int64_t>(request.context.size() + request.continuation.size());
  if (length - 1 > model.engine->options().context) {
    throw InvalidInput(where + std::to_string(length) + " tokens, the context has " +
                       std::to_string(model.engine->options().context));
  }
  for (const std::vector<int32_t>* ids : {&request.context, &request.continuation}) {
    for (const int32_t id : *ids) {
      if (id >= 0 && id < config.vocab_size) continue;
      throw InvalidInput(where + "token id " + std::to_string(id) + ": allowed is 0.." +
                         std::to_string(config.vocab_size - 1));
    }
  }
}

// nullptr where there is no room just now.
std::unique_ptr<Job> Begin(Engine& engine, const ScoreRequest& request, size_t index) {
  auto job = std::make_unique<Job>();
  job->index = index;
  job->ids = request.context;
  job->ids.insert(job->ids.end(), request.continuation.begin(), request.continuation.end());
  job->first_row = static_cast<int64_t>(request.context.size()) - 1;
  job->sequence = engine.NewSequence(job->rows());
  if (job->sequence == nullptr) return nullptr;
  job->sequence->Append(std::span(job->ids).first(job->ids.size() - 1));
  job->queries.top = 1;
  return job;
}

// The job's share of a pass; rows in front of the continuation give no logits, where they may be a pass of their own.
StepItem ItemOf(Engine& engine, Job& job, int64_t budget) {
  int64_t tokens = engine.NextTokens(*job.sequence, budget);
  const int64_t computed = job.sequence->computed();
  if (engine.chunk_invariant() && computed < job.first_row) {
    tokens = std::min(tokens, job.first_row - computed);
    return {job.sequence.get(), tokens, StepOutput::kNone};
  }
  job.queries.targets = std::span(job.ids).subspan(static_cast<size_t>(computed) + 1, static_cast<size_t>(tokens));
  return {job.sequence.get(), tokens, StepOutput::kAll, &job.queries};
}

// Adds the answers of the item's rows, which begin at `first` of the pass, to the score.
void Accept(const Engine& engine, const Job& job, const StepItem& item, int64_t first, Score* score) {
  const int64_t begin = job.sequence->computed() - item.num_tokens;
  for (int64_t i = 0; i < item.num_tokens; ++i) {
    if (begin + i < job.first_row) continue;
    const LogProbAnswer& answer = engine.LogProb(first + i);
    score->logprob += answer.logprob;
    score->is_greedy = score->is_greedy && answer.top == 1 && answer.top_ids[0] == answer.id;
  }
}

}  // namespace

std::vector<Score> ScoreAll(LoadedModel& model, const std::vector<ScoreRequest>& requests, const Progress& progress) {
  Engine& engine = *model.engine;
  for (size_t i = 0; i < requests.size(); ++i) Check(model, requests[i], i);
  const size_t most = engine.batch_invariant() ? static_cast<size_t>(engine.shape().max_sequences) : 1;
  std::vector<Score> scores(requests.size());
  std::vector<std::unique_ptr<Job>> jobs;
  size_t next = 0;
  size_t done = 0;
  while (done < requests.size()) {
    while (next < requests.size() && jobs.size() < most) {
      std::unique_ptr<Job> job = Begin(engine, requests[next], next);
      if (job == nullptr) break;
      jobs.push_back(std::move(job));
      ++next;
    }
    if (jobs.empty()) throw InvalidInput("the KV cache has no room: sequences of engine() or streams hold it");
    CheckSignals();
    std::vector<StepItem> items;
    std::vector<Job*> owners;
    int64_t budget = engine.shape().max_rows;
    for (const std::unique_ptr<Job>& job : jobs) {
      const StepItem item = ItemOf(engine, *job, budget);
      if (item.num_tokens == 0) continue;
      items.push_back(item);
      owners.push_back(job.get());
      budget -= item.num_tokens;
      if (budget == 0) break;
    }
    STOCH_CHECK(!items.empty());
    engine.Step(items);
    int64_t row = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].output == StepOutput::kNone) continue;
      Accept(engine, *owners[i], items[i], row, &scores[owners[i]->index]);
      row += items[i].num_tokens;
    }
    done += std::erase_if(jobs, [](const std::unique_ptr<Job>& job) { return job->sequence->pending() == 0; });
    if (progress) {
      const nb::gil_scoped_acquire gil;
      progress(static_cast<int64_t>(done), static_cast<int64_t>(requests.size()), "scoring");
    }
  }
  return scores;
}

PerplexityResult Perplexity(LoadedModel& model, std::span<const int32_t> ids, int64_t ctx, int64_t max_windows,
                            const Progress& progress) {
  PerplexityOptions options{.ctx = ctx, .max_windows = max_windows, .on_window = {}, .on_logits = {}};
  options.on_window = [&](const PerplexityResult& so_far, int64_t total) {
    CheckSignals();
    if (!progress) return;
    const nb::gil_scoped_acquire gil;
    progress(so_far.windows, total, "perplexity");
  };
  return EvaluatePerplexity(*model.engine, ids, options);
}

}  // namespace stoch::python
