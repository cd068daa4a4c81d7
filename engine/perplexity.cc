// SPDX-License-Identifier: Apache-2.0
#include "engine/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

// Sums that give mean and standard error of the negative log-likelihoods seen so far.
struct Sums {
  int64_t count = 0;
  double nll = 0;
  double nll_squared = 0;

  void Add(double value) {
    ++count;
    nll += value;
    nll_squared += value * value;
  }
};

void Summarize(const Sums& sums, PerplexityResult& result) {
  const auto n = static_cast<double>(sums.count);
  result.predictions = sums.count;
  result.mean_nll = sums.nll / n;
  result.ppl = std::exp(result.mean_nll);
  const double variance = sums.nll_squared / n - result.mean_nll * result.mean_nll;
  result.ppl_error = sums.count > 1 ? result.ppl * std::sqrt(std::max(variance, 0.0) / (n - 1)) : 0;
}

void ScoreWindow(Engine& engine, std::span<const int32_t> window, const PerplexityOptions& options, Sums& sums) {
  // The last token is only ever predicted, but configurations with whole-window scopes see it, as published.
  const std::unique_ptr<Sequence> sequence = engine.NewSequence(static_cast<int64_t>(window.size()));
  if (sequence == nullptr) throw InvalidInput("the KV cache has no room for a window just now");
  sequence->Append(window);
  while (sequence->pending() > 0) {
    const auto first = static_cast<size_t>(sequence->computed());
    StepItem item{sequence.get(), engine.NextTokens(*sequence, engine.shape().max_rows), StepOutput::kAll};
    const size_t rows = std::min(static_cast<size_t>(item.num_tokens), window.size() - 1 - first);
    const std::span<const int32_t> targets = window.subspan(first + 1, rows);
    RowQueries queries;
    queries.top = 0;
    queries.targets = targets;
    item.queries = &queries;
    engine.Step({&item, 1});
    if (rows == 0) break;
    for (size_t i = 0; i < rows; ++i) sums.Add(-engine.LogProb(static_cast<int64_t>(i)).logprob);
    if (!options.on_logits) continue;
    engine.ForLogits(0, static_cast<int64_t>(rows), [&](const TensorView& block, int64_t offset) {
      options.on_logits(block, targets.subspan(static_cast<size_t>(offset), static_cast<size_t>(block.dim(0))));
    });
  }
}

}  // namespace

PerplexityResult EvaluatePerplexity(Engine& engine, std::span<const int32_t> ids, const PerplexityOptions& options) {
  const int64_t ctx = options.ctx == 0 ? engine.shape().context : options.ctx;
  if (ctx < 2 || ctx > engine.shape().context) {
    throw InvalidInput("ctx = " + std::to_string(ctx) + ": allowed is 2.." + std::to_string(engine.shape().context));
  }
  int64_t windows = static_cast<int64_t>(ids.size()) / ctx;
  if (windows == 0) {
    throw InvalidInput("the text has " + std::to_string(ids.size()) + " tokens; expected at least one window of " +
                       std::to_string(ctx));
  }
  if (options.max_windows > 0) windows = std::min(windows, options.max_windows);

  const auto start = std::chrono::steady_clock::now();
  PerplexityResult result;
  Sums sums;
  for (int64_t i = 0; i < windows; ++i) {
    const std::span<const int32_t> window = ids.subspan(static_cast<size_t>(i * ctx), static_cast<size_t>(ctx));
    if (options.on_begin) options.on_begin(window);
    ScoreWindow(engine, window, options, sums);
    result.windows = i + 1;
    Summarize(sums, result);
    result.elapsed_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (options.on_window) options.on_window(result, windows);
  }
  return result;
}

}  // namespace stoch
