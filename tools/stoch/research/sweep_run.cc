// SPDX-License-Identifier: Apache-2.0
// One run of a sweep.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "app/interrupt.h"
#include "app/options/cost_options.h"
#include "app/report/kl.h"
#include "app/report/nll.h"
#include "engine/kl_divergence.h"
#include "engine/perplexity.h"
#include "kernels/base/error.h"
#include "loader/json_text.h"
#include "models/decoder/rank_link.h"
#include "research/profile.h"
#include "research/trace_writer.h"
#include "tools/stoch/research/sweep_parts.h"
#include "tools/stoch/research/sweep_plan.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

std::unique_ptr<Engine> OpenRun(const SweepPlan& plan, const EngineOptions& options,
                                const std::shared_ptr<Backend>& backend, const DeviceOptions& devices) {
  return OpenEngine(backend, OpenModelFiles(plan.model), options, devices, {.json = false, .quiet = true});
}

PerplexityOptions Windows(const SweepPlan& plan) {
  PerplexityOptions windows{.ctx = plan.ctx, .max_windows = plan.max_windows, .on_window = {}, .on_logits = {}};
  windows.on_window = [](const PerplexityResult&, int64_t) { ThrowIfInterrupted(); };
  return windows;
}

// A row for every operator of every layer, with the inputs of the exact model.
Json Profile(const SweepPlan& plan, Engine& configured, const std::shared_ptr<Backend>& backend,
             const DeviceOptions& devices) {
  EngineOptions options;
  options.precision = Precision::kFp32;
  options.context = plan.ctx;
  options.max_pass_rows = configured.options().max_pass_rows;
  const std::unique_ptr<Engine> exact = OpenRun(plan, options, backend, devices);
  ProfileOptions profile;
  profile.ctx = plan.ctx;
  profile.max_windows = plan.max_windows;
  profile.on_progress = [](int64_t, int64_t) { ThrowIfInterrupted(); };
  Json rows = Json::array();
  for (const ProfileRow& row : ProfileModel(*exact, configured, OpenModelFiles(plan.model), plan.ids, profile).rows) {
    rows.push_back(ProfileRowJson(row));
  }
  return rows;
}

// Runs the windows of a run or of a part, into metrics and sc_cost.
void Measure(const SweepPlan& plan, const PlannedRun& run, const std::shared_ptr<Backend>& backend,
             const DeviceOptions& devices, const std::string& base, Json* row) {
  EngineOptions options = run.engine;
  FitWindows(plan.ctx, backend->devices().front().kind, &options);
  if (plan.Has("kl")) options.base_rows = KlUploadRows(OpenModelFiles(plan.model).config.vocab_size);
  const std::unique_ptr<Engine> engine = OpenRun(plan, options, backend, devices);
  std::unique_ptr<ScCostCollector> collector = CollectCost(*engine, plan.cost, nullptr);
  PerplexityOptions windows = Windows(plan);
  SweepPart part;
  if (run.windows > 0) {
    std::vector<int64_t>& some = windows.windows.emplace(static_cast<size_t>(run.windows));
    std::iota(some.begin(), some.end(), run.first_window);
    windows.on_nll = [&](double nll) { part.nll.push_back(nll); };
  }
  KlComparison comparison(*backend, engine->config().vocab_size);
  std::optional<KlBaseReader> reader;
  if (plan.Has("kl")) {
    reader.emplace(base, engine->config().vocab_size);
    reader->Seek(run.first_window * (plan.ctx - 1));
    windows.on_logits = [&](const TensorView& logits, std::span<const int32_t> targets) {
      comparison.Add(*reader, logits, targets);
    };
  }
  RunNumbers numbers;
  numbers.result = EvaluatePerplexity(*engine, plan.ids, windows);
  if (collector != nullptr) numbers.cost = collector->Cost();
  if (run.windows > 0) {
    part.comparisons.assign(comparison.rows().begin(), comparison.rows().end());
    part.cost = numbers.cost;
    AddPart(run, part, row);
    return;
  }
  if (plan.Has("kl")) numbers.kl = comparison.Summary();
  if (collector != nullptr && plan.Has("trace")) {
    numbers.trace = {{"schema", "scmp-trace-summary-v1"}, {"groups", TraceGroupsJson(*collector)}};
  }
  if (collector.reset(); numbers.cost && plan.Has("profile"))
    numbers.profile = Profile(plan, *engine, backend, devices);
  AddMetrics(plan, numbers, row);
}

}  // namespace

Json RowHead(const PlannedRun& run) {
  Json head = {
      {"schema", run.windows > 0 ? kSweepPartSchema : "stoch-sweep-v1"}, {"key", run.key}, {"config", run.config}};
  if (run.seed) head["seed"] = *run.seed;
  return head;
}

void AddMetrics(const SweepPlan& plan, const RunNumbers& numbers, Json* row) {
  Json& metrics = (*row)["metrics"];
  metrics = Json::object();
  const PerplexityResult& result = numbers.result;
  if (plan.Has("ppl")) {
    metrics["ppl"] = result.ppl;
    metrics["ppl_error"] = result.ppl_error;
    metrics["mean_nll"] = result.mean_nll;
    metrics["windows"] = result.windows;
    metrics["predictions"] = result.predictions;
    metrics["nll_by_window"] = NllJson(result);
  }
  if (numbers.kl) metrics["kl"] = KlJson(*numbers.kl);
  if (!numbers.cost) {  // exact: there is nothing to count, and no error
    for (const char* metric : {"cycles", "energy", "profile", "trace"}) {
      if (plan.Has(metric)) metrics[metric] = nullptr;
    }
    (*row)["sc_cost"] = nullptr;
    return;
  }
  if (plan.Has("trace")) metrics["trace"] = numbers.trace;
  if (plan.Has("cycles")) metrics["cycles"] = numbers.cost->ToJson().at("array").at("cycles");
  if (plan.energy) metrics["energy"] = EnergyJson(PriceCost(*numbers.cost, *plan.energy), *plan.energy);
  if (plan.Has("profile")) metrics["profile"] = numbers.profile;
  (*row)["sc_cost"] = numbers.cost->ToJson();
}

SweepRow RunOne(const SweepPlan& plan, const PlannedRun& run, const std::shared_ptr<Backend>& backend,
                const DeviceOptions& devices, const std::string& base, bool timing) {
  const auto start = std::chrono::steady_clock::now();
  Json row = RowHead(run);
  std::string error;
  try {
    Measure(plan, run, backend, devices, base, &row);
  } catch (const Interrupted&) {
    throw;
  } catch (const LostRank&) {
    throw;
  } catch (const std::bad_alloc&) {
    error = "out of host memory";
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  if (!error.empty()) {
    row = RowHead(run);
    row["error"] = error;
  }
  if (timing) {
    const auto elapsed = std::chrono::steady_clock::now() - start;
    row["elapsed_ms"] = std::chrono::duration<double, std::milli>(elapsed).count();
  }
  return {JsonText(row), !error.empty()};
}

void CheckBase(const SweepPlan& plan, const std::string& path) {
  const KlBaseReader reader(path, OpenModelFiles(plan.model).config.vocab_size);
  const KlBaseOrigin &got = reader.origin(), &expected = plan.base;
  const auto require = [&](const char* what, const auto& is, const auto& should_be) {
    if (is == should_be) return;
    throw InvalidInput(
        fmt::format("--kl-base {}: has logits of another {}: {}, the plan has {}", path, what, is, should_be));
  };
  if (got.model_sha256.empty()) {
    throw InvalidInput("--kl-base " + path +
                       ": does not say what its logits are of: record it again with stoch perplexity --kl-base");
  }
  require("version", got.version, expected.version);
  require("model", got.model_sha256, expected.model_sha256);
  require("text or tokenizer", got.ids_sha256, expected.ids_sha256);
  require("configuration", got.config, expected.config);
  require("window", got.ctx, expected.ctx);
  require("number of predictions", reader.rows(), plan.predictions());
}

void WriteBase(const SweepPlan& plan, const std::shared_ptr<Backend>& backend, const DeviceOptions& devices,
               const std::string& path) {
  EngineOptions options;
  options.precision = Precision::kFp32;
  options.context = plan.ctx;
  FitWindows(plan.ctx, backend->devices().front().kind, &options);
  const std::unique_ptr<Engine> engine = OpenRun(plan, options, backend, devices);
  KlBaseWriter writer(path, engine->config().vocab_size, plan.base);
  PerplexityOptions windows = Windows(plan);
  windows.on_logits = [&](const TensorView& logits, std::span<const int32_t> targets) {
    writer.Add(*backend, logits, targets);
  };
  EvaluatePerplexity(*engine, plan.ids, windows);
  writer.Close();
}

}  // namespace stoch::cli
