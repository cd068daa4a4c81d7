// SPDX-License-Identifier: Apache-2.0
#include "engine/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/range_text.h"

namespace stoch {
namespace {

// The same numbers in the same order give the same bits.
class PerplexitySums {
 public:
  void Add(double nll) {
    ++count_;
    nll_ += nll;
    nll_squared_ += nll * nll;
  }
  // Of all that was added, without windows and time.
  PerplexityResult Result() const {
    const auto n = static_cast<double>(count_);
    PerplexityResult result;
    result.predictions = count_;
    result.mean_nll = nll_ / n;
    result.ppl = std::exp(result.mean_nll);
    const double variance = nll_squared_ / n - result.mean_nll * result.mean_nll;
    result.ppl_error = count_ > 1 ? result.ppl * std::sqrt(std::max(variance, 0.0) / (n - 1)) : 0;
    return result;
  }

 private:
  int64_t count_ = 0;
  double nll_ = 0;
  double nll_squared_ = 0;
};

// Scores windows, each a sequence of its own: passes take the rest of one and as much of the next ones as they have room
// for, so that all but the last are full.
class Scorer {
 public:
  Scorer(Engine& engine, std::span<const int32_t> ids, int64_t ctx, std::vector<int64_t> windows,
         const PerplexityOptions& options)
      : engine_(engine), ids_(ids), ctx_(ctx), windows_(std::move(windows)), options_(options) {
    // Without cuts windows share a pass only if they are whole.
    const int64_t whole = engine.shape().max_rows / ctx;
    const int64_t most = engine.chunk_invariant() ? engine.options().max_sequences : whole;
    const bool alone = !engine.batch_invariant() || options.on_begin;
    most_ = alone ? 1 : std::clamp<int64_t>(most, 1, engine.options().max_sequences);
  }

  // One pass; calls on_done when a window's last prediction is in `sums`. False when all of them are.
  bool Step(PerplexitySums& sums, const std::function<void(const WindowNll&)>& on_done) {
    std::vector<StepItem> items;
    int64_t rows = engine_.shape().max_rows;
    for (size_t w = 0; rows > 0; ++w) {
      if (w == running_.size() && !Open()) break;
      Running& window = running_[w];
      const int64_t tokens = engine_.NextTokens(*window.sequence, rows);
      if (tokens == 0) break;
      // The last token is only ever predicted, but configurations with whole-window scopes see it, as published.
      const auto first = static_cast<size_t>(window.sequence->computed());
      const size_t predicted = std::min(static_cast<size_t>(tokens), window.ids.size() - 1 - first);
      window.queries.top = 0;
      window.queries.targets = window.ids.subspan(first + 1, predicted);
      items.push_back({window.sequence.get(), tokens, StepOutput::kAll, nullptr});
      rows -= tokens;
    }
    if (items.empty()) return false;
    for (size_t w = 0; w < items.size(); ++w) items[w].queries = &running_[w].queries;
    engine_.Step(items);
    int64_t row = 0;
    for (size_t w = 0; w < items.size(); ++w) {
      Take(row, running_[w], sums);
      row += items[w].num_tokens;
      if (running_[w].sequence->pending() == 0) on_done(running_[w].nll);
    }
    std::erase_if(running_, [](const Running& window) { return window.sequence->pending() == 0; });
    return true;
  }

 private:
  struct Running {
    std::span<const int32_t> ids;
    std::unique_ptr<Sequence> sequence;
    RowQueries queries;
    WindowNll nll = {};
  };

  // Begins the next window, if there is one and room for it.
  bool Open() {
    if (opened_ == windows_.size() || static_cast<int64_t>(running_.size()) == most_) return false;
    const auto window = ids_.subspan(static_cast<size_t>(windows_[opened_] * ctx_), static_cast<size_t>(ctx_));
    std::unique_ptr<Sequence> sequence = engine_.NewSequence(ctx_);
    if (sequence == nullptr && !running_.empty()) return false;
    if (sequence == nullptr) throw InvalidInput("the KV cache has no room for a window just now");
    if (options_.on_begin) options_.on_begin(window);
    sequence->set_number(static_cast<uint32_t>(windows_[opened_]));
    sequence->Append(window);
    running_.push_back({window, std::move(sequence), {}, {}});
    ++opened_;
    return true;
  }

  void Take(int64_t row, Running& window, PerplexitySums& sums) {
    const std::span<const int32_t> targets = window.queries.targets;
    for (size_t i = 0; i < targets.size(); ++i) {
      const double nll = -engine_.LogProb(row + static_cast<int64_t>(i)).logprob;
      sums.Add(nll);
      if (options_.on_nll) options_.on_nll(nll);
      window.nll.nll += nll;
      ++window.nll.tokens;
    }
    if (!options_.on_logits || targets.empty()) return;
    engine_.ForLogits(row, static_cast<int64_t>(targets.size()), [&](const TensorView& block, int64_t offset) {
      options_.on_logits(block, targets.subspan(static_cast<size_t>(offset), static_cast<size_t>(block.dim(0))));
    });
  }

  Engine& engine_;
  const std::span<const int32_t> ids_;
  const int64_t ctx_;
  const std::vector<int64_t> windows_;
  const PerplexityOptions& options_;
  int64_t most_ = 1;  // windows at a time
  size_t opened_ = 0;
  std::vector<Running> running_;  // in order
};

}  // namespace

PerplexityResult SumNll(std::span<const double> nll, int64_t predictions) {
  STOCH_CHECK(predictions > 0 && static_cast<int64_t>(nll.size()) % predictions == 0);
  PerplexitySums sums;
  std::vector<WindowNll> windows;
  for (size_t i = 0; i < nll.size(); ++i) {
    sums.Add(nll[i]);
    if (static_cast<int64_t>(i) % predictions == 0) windows.emplace_back();
    windows.back().nll += nll[i];
    ++windows.back().tokens;
  }
  PerplexityResult result = sums.Result();
  result.windows = static_cast<int64_t>(windows.size());
  result.nll_by_window = std::move(windows);
  return result;
}

void FitWindows(int64_t ctx, DeviceKind kind, EngineOptions* options) {
  constexpr int64_t kLongest = 2048;    // that large passes are wanted for
  constexpr int64_t kMostWindows = 64;  // of a pass: each has pages and, in a plan, room for its logits
  const int64_t usual = DefaultPassRows(kind, 1);
  const int64_t rows = std::max({options->max_pass_rows, std::min(ctx, kLongest), usual});
  // Left open where it is the usual number: placement takes fewer where memory is short.
  if (kind == DeviceKind::kCpu || rows > usual) options->max_pass_rows = rows;
  if (!BatchInvariant(*options)) return;
  // Where windows may be cut, what is left of a pass is for the first part of one more.
  const bool cuts = ChunkInvariant(*options) && ctx <= rows && rows % ctx != 0;
  options->max_sequences = std::clamp<int64_t>(rows / ctx + (cuts ? 1 : 0), 1, kMostWindows);
  // Of a longer context than that of windows one sequence is enough.
  if (options->kv_tokens == 0) {
    options->kv_tokens = std::max(RoundUpToPages(options->context), options->max_sequences * RoundUpToPages(ctx));
  }
}

PerplexityResult EvaluatePerplexity(Engine& engine, std::span<const int32_t> ids, const PerplexityOptions& options) {
  const int64_t ctx = options.ctx == 0 ? engine.shape().context : options.ctx;
  if (ctx < 2) throw InvalidInput("ctx = " + std::to_string(ctx) + ": a window has at least 2 tokens");
  if (engine.shape().context < 2) throw InvalidInput("context = 1: a window has at least 2 tokens");
  if (ctx > engine.shape().context) {
    throw InvalidInput("ctx = " + std::to_string(ctx) + ": allowed is " + RangeText(2, engine.shape().context));
  }
  int64_t windows = static_cast<int64_t>(ids.size()) / ctx;
  if (windows == 0) {
    throw InvalidInput("the text has " + std::to_string(ids.size()) + " tokens; expected at least one window of " +
                       std::to_string(ctx));
  }
  if (options.max_windows > 0) windows = std::min(windows, options.max_windows);

  std::vector<int64_t> chosen(static_cast<size_t>(windows));
  std::iota(chosen.begin(), chosen.end(), 0);
  if (options.windows) {
    chosen = *options.windows;
    for (const int64_t window : chosen) {
      if (window >= 0 && window < windows) continue;
      throw InvalidInput("window " + std::to_string(window) + ": the text has windows " + RangeText(0, windows - 1));
    }
  }

  const auto start = std::chrono::steady_clock::now();
  PerplexityResult result;
  PerplexitySums sums;
  std::vector<WindowNll> nll_by_window;
  const auto total = static_cast<int64_t>(chosen.size());
  const auto on_done = [&](const WindowNll& window) {
    nll_by_window.push_back(window);
    result = sums.Result();
    result.windows = static_cast<int64_t>(nll_by_window.size());
    result.nll_by_window = nll_by_window;
    result.elapsed_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (options.on_window) options.on_window(result, total);
  };
  Scorer scorer(engine, ids, ctx, std::move(chosen), options);
  while (scorer.Step(sums, on_done)) {
  }
  return result;
}

}  // namespace stoch
