// SPDX-License-Identifier: Apache-2.0
// One run of a sweep.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/interrupt.h"
#include "app/options/cost_options.h"
#include "app/report/kl.h"
#include "app/report/nll.h"
#include "engine/kl_divergence.h"
#include "engine/perplexity.h"
#include "kernels/base/error.h"
#include "models/decoder/rank_link.h"
#include "research/profile.h"
#include "research/trace_writer.h"
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

// metrics and sc_cost.
void Measure(const SweepPlan& plan, const PlannedRun& run, const std::shared_ptr<Backend>& backend,
             const DeviceOptions& devices, const std::string& base, Json* row) {
  EngineOptions options = run.engine;
  FitWindows(plan.ctx, backend->devices().front().kind, &options);
  if (plan.Has("kl")) options.base_rows = KlUploadRows(OpenModelFiles(plan.model).config.vocab_size);
  const std::unique_ptr<Engine> engine = OpenRun(plan, options, backend, devices);
  std::unique_ptr<ScCostCollector> collector = CollectCost(*engine, plan.cost, nullptr);
  PerplexityOptions windows = Windows(plan);
  KlComparison comparison(*backend, engine->config().vocab_size);
  std::optional<KlBaseReader> reader;
  if (plan.Has("kl")) {
    reader.emplace(base, engine->config().vocab_size);
    windows.on_logits = [&](const TensorView& logits, std::span<const int32_t> targets) {
      comparison.Add(*reader, logits, targets);
    };
  }
  const PerplexityResult result = EvaluatePerplexity(*engine, plan.ids, windows);
  Json& metrics = (*row)["metrics"];
  metrics = Json::object();
  if (plan.Has("ppl")) {
    metrics["ppl"] = result.ppl;
    metrics["ppl_error"] = result.ppl_error;
    metrics["mean_nll"] = result.mean_nll;
    metrics["windows"] = result.windows;
    metrics["predictions"] = result.predictions;
    metrics["nll_by_window"] = NllJson(result);
  }
  if (plan.Has("kl")) metrics["kl"] = KlJson(comparison.Summary());
  if (collector == nullptr) {  // exact: there is nothing to count, and no error
    for (const char* metric : {"cycles", "energy", "profile", "trace"}) {
      if (plan.Has(metric)) metrics[metric] = nullptr;
    }
    (*row)["sc_cost"] = nullptr;
    return;
  }
  const ScCost cost = collector->Cost();
  if (plan.Has("trace")) {
    metrics["trace"] = {{"schema", "scmp-trace-summary-v1"}, {"groups", TraceGroupsJson(*collector)}};
  }
  collector.reset();
  if (plan.Has("cycles")) metrics["cycles"] = cost.ToJson().at("array").at("cycles");
  if (plan.energy) metrics["energy"] = EnergyJson(PriceCost(cost, *plan.energy), *plan.energy);
  if (plan.Has("profile")) metrics["profile"] = Profile(plan, *engine, backend, devices);
  (*row)["sc_cost"] = cost.ToJson();
}

}  // namespace

SweepRow RunOne(const SweepPlan& plan, const PlannedRun& run, const std::shared_ptr<Backend>& backend,
                const DeviceOptions& devices, const std::string& base, bool timing) {
  const auto start = std::chrono::steady_clock::now();
  Json head = {{"schema", "stoch-sweep-v1"}, {"key", run.key}, {"config", run.config}};
  if (run.seed) head["seed"] = *run.seed;
  Json row = head;
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
    row = head;
    row["error"] = error;
  }
  if (timing) {
    const auto elapsed = std::chrono::steady_clock::now() - start;
    row["elapsed_ms"] = std::chrono::duration<double, std::milli>(elapsed).count();
  }
  return {row.dump(-1, ' ', false, Json::error_handler_t::replace), !error.empty()};
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
