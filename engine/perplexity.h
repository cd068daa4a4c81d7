// SPDX-License-Identifier: Apache-2.0
// Perplexity of a text, window by window.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace stoch {

// Predictions of one window, and the sum of their negative log-likelihoods in double, ascending.
struct WindowNll {
  int64_t tokens = 0;
  double nll = 0;
};

struct PerplexityResult {
  int64_t windows = 0;
  int64_t predictions = 0;
  double mean_nll = 0;   // natural log, per prediction
  double ppl = 0;        // exp(mean_nll)
  double ppl_error = 0;  // one standard error: ppl * sqrt((mean(nll^2) - mean_nll^2) / (predictions - 1))
  double elapsed_ms = 0;
  std::vector<WindowNll> nll_by_window;  // of windows that are done, in order
};

// The numbers of whole windows, without their time, from the negative log-likelihood of every prediction in order.
// Shapes: nll [windows * predictions]. Bits: those of EvaluatePerplexity, whoever computed them.
PerplexityResult SumNll(std::span<const double> nll, int64_t predictions);

struct PerplexityOptions {
  int64_t ctx = 0;                                   // tokens per window, 2..the engine's context; 0 = the context
  int64_t max_windows = 0;                           // 0 = all
  std::optional<std::vector<int64_t>> windows = {};  // these of them alone, in this order
  std::function<void(double nll)> on_nll = {};       // of every prediction, in order
  // Before a window runs, which then has its passes to itself.
  std::function<void(std::span<const int32_t> window)> on_begin = {};
  std::function<void(const PerplexityResult& so_far, int64_t total_windows)> on_window;
  // Logits of predictions, in order and where they are: F32 [targets.size(), vocab_size] on a device of the engine's
  // backend; row i predicts targets[i]. They hold until it returns.
  std::function<void(const TensorView& logits, std::span<const int32_t> targets)> on_logits;
};

// The pass and the sequences that windows of ctx tokens want of an engine on a device of that kind: several short windows
// in a pass, where a sequence's bits do not depend on the others of its pass (BatchInvariant), and a part of one more
// where they do not depend on cuts either (ChunkInvariant), or one long one.
// Requires: ctx >= 1; context is set already.
void FitWindows(int64_t ctx, DeviceKind kind, EngineOptions* options);

// Cuts `ids` (the tokenized text, BOS first where the model has one) into windows of ctx tokens without overlap, drops
// the tail, and scores the ctx - 1 predictions inside each: the WikiText protocol of transformers. Every window is a
// sequence of its own, in one pass with others, alone or in chunks, as the engine and the configuration allow: passes are
// full, and the rest of a window is in one pass with the first tokens of the next.
// Errors: InvalidInput if there is no whole window, or as Engine::Step.
PerplexityResult EvaluatePerplexity(Engine& engine, std::span<const int32_t> ids, const PerplexityOptions& options);

}  // namespace stoch
