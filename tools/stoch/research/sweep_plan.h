// SPDX-License-Identifier: Apache-2.0
// A sweep with everything that could be wrong looked at, before any work.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "engine/engine.h"
#include "engine/kl_divergence.h"
#include "engine/perplexity.h"
#include "loader/research/sweep_file.h"
#include "research/cost.h"
#include "research/energy/energy.h"

namespace stoch::cli {

struct PlannedRun {
  EngineOptions engine;
  std::string config;             // what Describe says, or fp32, fp16
  std::string key;                // 64 hex digits
  std::string operators;          // OperatorsSha256; "" without SC
  std::optional<size_t> same_as;  // an earlier run of equal operators
  size_t configuration = 0;       // index in SweepPlan::configurations
  std::optional<uint64_t> seed;
  std::vector<std::pair<std::string, std::string>> parameters;
  // The windows of a part of a run (sweep_parts.h); 0: the plan's.
  int64_t first_window = 0, windows = 0;
};

struct SweepPlan {
  std::string model;       // as the file names it
  std::string model_name;  // for people
  std::vector<int32_t> ids;
  int64_t ctx = 0, max_windows = 0;
  int64_t windows_per_row = 0;  // of shards; 0: a row is a run
  std::vector<std::string> metrics;
  CostOptions cost;
  std::optional<EnergyTable> energy;
  std::vector<PlannedRun> runs;
  std::vector<std::string> configurations;  // as config, without the seed
  bool has_seeds = false;
  std::optional<size_t> reference;  // a configuration
  KlBaseOrigin base;                // of the exact logits that runs are compared with

  int64_t predictions() const { return max_windows * (ctx - 1); }
  bool Has(std::string_view metric) const;
};

// Reads the text and all files that runs refer to, opens the model without its weights, digests them (what is kept of an
// earlier time counts, unless `verify_digest`), and checks every run against both.
// Errors: InvalidInput, which for a run starts with "run N (settings): ".
SweepPlan ResolveSweep(const SweepFile& file, const std::string& version, bool verify_digest = false);

// The metrics that a sweep can compute, and what they are.
std::vector<std::pair<std::string, std::string>> SweepMetrics();

// Numbers of all windows of a run.
struct RunNumbers {
  PerplexityResult result;
  std::optional<KlSummary> kl;
  std::optional<ScCost> cost;             // none of an exact run
  nlohmann::ordered_json trace, profile;  // where the plan has these metrics
};
// {schema, key, config, seed} of a row, and its metrics and sc_cost.
nlohmann::ordered_json RowHead(const PlannedRun& run);
void AddMetrics(const SweepPlan& plan, const RunNumbers& numbers, nlohmann::ordered_json* row);

// The row of a run, without line break: {schema, key, config, metrics, sc_cost}, or an error.
struct SweepRow {
  std::string text;
  bool failed = false;
};
// Runs one, or a part of one. `base` names a file of exact logits, "" without kl. What fails is a row; Interrupted and LostRank are thrown.
SweepRow RunOne(const SweepPlan& plan, const PlannedRun& run, const std::shared_ptr<Backend>& backend,
                const DeviceOptions& devices, const std::string& base, bool timing);
// Whether a file of exact logits is of this plan's model, text and windows, before any work. Errors: InvalidInput saying
// what differs.
void CheckBase(const SweepPlan& plan, const std::string& path);
// Writes the exact logits of the plan's windows.
void WriteBase(const SweepPlan& plan, const std::shared_ptr<Backend>& backend, const DeviceOptions& devices,
               const std::string& path);

}  // namespace stoch::cli
