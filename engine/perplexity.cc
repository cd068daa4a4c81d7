// SPDX-License-Identifier: Apache-2.0
#include "engine/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
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

// Scores `windows`, each a sequence of its own, in passes that they share, and says when the next of them is done. Only
// one window may take several passes. Returns how many the KV cache had room for, at least 1.
size_t ScoreWindows(Engine& engine, std::span<const std::span<const int32_t>> windows, const PerplexityOptions& options,
                    Sums& sums, const std::function<void()>& on_done) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (const std::span<const int32_t> window : windows) {
    std::unique_ptr<Sequence> sequence = engine.NewSequence(static_cast<int64_t>(window.size()));
    if (sequence == nullptr) break;
    // The last token is only ever predicted, but configurations with whole-window scopes see it, as published.
    sequence->Append(window);
    sequences.push_back(std::move(sequence));
  }
  if (sequences.empty()) throw InvalidInput("the KV cache has no room for a window just now");
  while (sequences.front()->pending() > 0) {
    std::vector<StepItem> items;
    std::vector<RowQueries> queries(sequences.size());
    for (size_t w = 0; w < sequences.size(); ++w) {
      Sequence& sequence = *sequences[w];
      const auto first = static_cast<size_t>(sequence.computed());
      const int64_t tokens = engine.NextTokens(sequence, engine.shape().max_rows);
      const size_t rows = std::min(static_cast<size_t>(tokens), windows[w].size() - 1 - first);
      queries[w].top = 0;
      queries[w].targets = windows[w].subspan(first + 1, rows);
      items.push_back({&sequence, tokens, StepOutput::kAll, &queries[w]});
    }
    engine.Step(items);
    int64_t row = 0;
    for (size_t w = 0; w < sequences.size(); ++w) {
      const std::span<const int32_t> targets = queries[w].targets;
      for (size_t i = 0; i < targets.size(); ++i) {
        sums.Add(-engine.LogProb(row + static_cast<int64_t>(i)).logprob);
      }
      if (options.on_logits && !targets.empty()) {
        engine.ForLogits(row, static_cast<int64_t>(targets.size()), [&](const TensorView& block, int64_t offset) {
          options.on_logits(block, targets.subspan(static_cast<size_t>(offset), static_cast<size_t>(block.dim(0))));
        });
      }
      row += items[w].num_tokens;
      if (sequences[w]->pending() == 0) on_done();
    }
  }
  return sequences.size();
}

// Windows of one pass.
int64_t MostWindows(const Engine& engine, int64_t ctx, const PerplexityOptions& options) {
  if (!engine.batch_invariant() || options.on_begin) return 1;
  return std::max<int64_t>(1, std::min(engine.shape().max_rows / ctx, engine.options().max_sequences));
}

}  // namespace

void FitWindows(int64_t ctx, DeviceKind kind, EngineOptions* options) {
  constexpr int64_t kLongest = 2048;    // that large passes are wanted for
  constexpr int64_t kMostWindows = 64;  // of a pass: each has pages and, in a plan, room for its logits
  const int64_t usual = DefaultPassRows(kind, 1);
  const int64_t rows = std::max({options->max_pass_rows, std::min(ctx, kLongest), usual});
  // Left open where it is the usual number: placement takes fewer where memory is short.
  if (kind == DeviceKind::kCpu || rows > usual) options->max_pass_rows = rows;
  if (!BatchInvariant(*options)) return;
  options->max_sequences = std::clamp<int64_t>(rows / ctx, 1, kMostWindows);
  // Of a longer context than that of windows one sequence is enough.
  if (options->kv_tokens == 0) {
    options->kv_tokens = std::max(RoundUpToPages(options->context), options->max_sequences * RoundUpToPages(ctx));
  }
}

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
  const auto on_done = [&] {
    ++result.windows;
    Summarize(sums, result);
    result.elapsed_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (options.on_window) options.on_window(result, windows);
  };
  const int64_t most = MostWindows(engine, ctx, options);
  for (int64_t first = 0; first < windows;) {
    std::vector<std::span<const int32_t>> pass;
    for (int64_t i = first; i < std::min(first + most, windows); ++i) {
      pass.push_back(ids.subspan(static_cast<size_t>(i * ctx), static_cast<size_t>(ctx)));
    }
    if (options.on_begin) options.on_begin(pass.front());
    first += static_cast<int64_t>(ScoreWindows(engine, pass, options, sums, on_done));
  }
  return result;
}

}  // namespace stoch
