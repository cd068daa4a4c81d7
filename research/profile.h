// SPDX-License-Identifier: Apache-2.0
// How far every operator of every layer is from its exact product, quantization and streams apart
// (docs/research.md#profile).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kl_divergence.h"
#include "engine/perplexity.h"
#include "research/cost.h"
#include "research/error_metrics.h"

namespace stoch {

struct ProfileOptions {
  int64_t ctx = 512;  // tokens of a window, cut as EvaluatePerplexity cuts them
  int64_t max_windows = 1;
  bool propagated = false;  // products of the configured forward against those of the exact one; else all inputs are
                            // those of the exact forward, and the error is split
  bool heads = false;       // rows for every head of qk and av too
  CostOptions cost = {};
  CallSink* sink = nullptr;  // of the configured forward, as ScCostCollector has it
  std::function<void(const ScCostCollector& cost)> on_cost = {};      // at the end
  std::function<void(int64_t done, int64_t total)> on_progress = {};  // may throw to end the run
};

struct ProfileRow {
  int layer = -1;  // -1: the LM head
  std::string op;
  int head = -1;  // -1: all
  ErrorMetrics error;
};

struct ProfileResult {
  std::string config;            // Describe
  std::vector<ProfileRow> rows;  // by layer, the LM head last, in the order of a layer; heads after their operator
  PerplexityResult perplexity;   // of the configured forward
  KlSummary kl;                  // against the exact one
  ScCost cost;

  // Indices of the rows of all heads with the largest mse, at most `count`, largest first, ties by order.
  std::vector<size_t> Worst(size_t count) const;
  // Their mse over the sum of mse of all such rows; 0 / 0 is 0.
  double MseShare(size_t row) const;
};

// {layer, op, head, n, mse, ...}: null where layer or head is none or a quotient is 0 / 0.
nlohmann::ordered_json ProfileRowJson(const ProfileRow& row);

// What is wrong before anything is loaded. Errors: InvalidInput: experts, windows that are none or too many.
void CheckProfile(const DecoderConfig& config, size_t tokens, const ProfileOptions& options);

// Rows of exact logits that a profile keeps on the device: EngineOptions::base_rows of its configured engine.
inline int64_t ProfileBaseRows(const ProfileOptions& options) { return options.ctx - 1; }

// Profiles the configuration of `configured` over the windows of `ids`.
// Requires: both engines are of the model `files`, on one backend and device, with a context of at least ctx; `exact`
//           is in fp32, `configured` in SC. The backend is observed by nobody.
// Errors: InvalidInput as CheckProfile, and for a backend that shows no operands or several devices.
// Bits:   results depend on no thread count and CPU variant.
ProfileResult ProfileModel(Engine& exact, Engine& configured, const ModelFiles& files, std::span<const int32_t> ids,
                           const ProfileOptions& options);

}  // namespace stoch
