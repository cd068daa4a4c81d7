// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_plan.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "app/demo_model.h"
#include "app/interrupt.h"
#include "app/options/cost_options.h"
#include "app/output.h"
#include "engine/digest_cache.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/json_text.h"
#include "loader/range_text.h"
#include "loader/sha256.h"
#include "research/products/operator_digest.h"
#include "research/profile.h"
#include "tools/stoch/research/sweep_parts.h"
#include "tools/stoch/research/sweep_same.h"

namespace stoch::cli {
namespace {

constexpr int64_t kDefaultCtx = 2048;

// Single settings of a list of comma-separated ones.
std::vector<std::string> Split(const std::vector<std::string>& settings) {
  std::vector<std::string> parts;
  for (const std::string& text : settings) {
    size_t begin = 0;
    while (begin <= text.size()) {
      const size_t end = std::min(text.find(',', begin), text.size());
      if (end > begin) parts.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return parts;
}

// What an exact run says of SC. Errors: InvalidInput naming the setting, as of --sc with --precision fp32.
struct ExactCheck {
  std::string of_base, of_run;  // the first setting of SC
  bool base_says_precision = false;

  void Require(const std::string& precision) const {
    // The base is of runs in SC, unless it is what makes them exact.
    const std::string& first = of_run.empty() && base_says_precision ? of_base : of_run;
    if (!first.empty()) throw InvalidInput(first + ": has no meaning with " + precision);
  }
};

// The settings of a run: those of --sc, and those that are options of their own on the command line.
// Errors: InvalidInput where one contradicts another or has no value.
ArithmeticOptions ArithmeticOf(const SweepFile& file, const SweepRun& run) {
  ArithmeticOptions options;
  options.files.mp = file.mp;
  options.files.smooth = file.smooth;
  options.files.mask = file.mask;
  const std::pair<const char*, std::string*> own[] = {{"mp", &options.files.mp},
                                                      {"mp_normalise", &options.files.mp_normalise},
                                                      {"smooth", &options.files.smooth},
                                                      {"mask", &options.files.mask}};
  ExactCheck exact;
  for (size_t i = 0; i < run.settings.size(); ++i) {
    const bool is_base = i < file.base_settings;
    const bool is_seed = run.seed && i + 1 == run.settings.size();
    for (const std::string& setting : Split({run.settings[i]})) {
      const size_t equals = setting.find('=');
      const std::string name = setting.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : setting.substr(equals + 1);
      if (name == "series") continue;  // of a plot
      if (setting == "fp32" || setting == "fp16" || (name == "precision" && equals != std::string::npos)) {
        options.precision = name == "precision" ? value : setting;
        exact.base_says_precision = is_base;
        continue;
      }
      std::string& first = is_base ? exact.of_base : exact.of_run;
      if (first.empty() && !is_seed) first = setting;
      if (const auto* found =
              std::find_if(std::begin(own), std::end(own), [&](const auto& known) { return name == known.first; });
          found != std::end(own) && equals != std::string::npos) {
        if (value.empty()) throw InvalidInput(setting + ": expected a value, got nothing");
        *found->second = value;
      } else if (name == "mask_bits") {
        const bool digit = value.size() == 1 && value[0] >= '2' && value[0] <= '8';
        if (!digit) throw InvalidInput("mask_bits = " + value + ": allowed is 2..8");
        options.files.mask_bits = value[0] - '0';
      } else {
        options.sc.push_back(setting);
      }
    }
  }
  if (ParsePrecision(options.precision) != Precision::kSc) {
    exact.Require(options.precision);
    options.sc.clear();
    options.files = {};
  }
  return options;
}

// Without the notice that Apply gives on every run.
EngineOptions EngineOf(const ArithmeticOptions& arithmetic, std::set<std::string>* notices) {
  EngineOptions engine;
  engine.precision = ParsePrecision(arithmetic.precision);
  engine.sc = ParseScModelConfig(arithmetic.sc);
  for (const std::string& notice : ReadScFiles(arithmetic.files, &engine.sc)) notices->insert(notice);
  if (DependsOnCall(engine.sc)) {
    notices->insert("normalise=call: a row's stream length depends on its window, so batching is off");
  }
  return engine;
}

// Draws the faults of a run by its seed too, unless a setting says by which.
void SeedFaults(const SweepRun& run, std::optional<uint64_t> seed, ScModelConfig* sc) {
  const auto names = [](const std::string& setting) { return setting.find("fault_seed=") != std::string::npos; };
  const auto has = [](const ScOperatorConfigs& operators) {
    return std::any_of(operators.begin(), operators.end(), [](const ScConfig& op) { return HasFaults(op); });
  };
  const bool any = has(sc->operators) || std::any_of(sc->layers.begin(), sc->layers.end(),
                                                     [&](const auto& layer) { return has(layer.second); });
  if (!seed || !any || std::any_of(run.settings.begin(), run.settings.end(), names)) return;
  const auto set = [&](ScOperatorConfigs& operators) {
    for (ScConfig& op : operators) op.fault_seed = *seed;
  };
  set(sc->operators);
  for (auto& [layer, operators] : sc->layers) set(operators);
}

// A run with another seed, or without one.
EngineOptions WithSeed(const SweepFile& file, SweepRun run, std::optional<uint64_t> seed) {
  if (run.seed) run.settings.pop_back();
  run.seed = seed;
  if (seed) run.settings.push_back("source_seed=" + std::to_string(*seed));
  std::set<std::string> told;
  EngineOptions engine = EngineOf(ArithmeticOf(file, run), &told);
  SeedFaults(run, seed, &engine.sc);
  return engine;
}

// Whether a configuration that no seed reaches belongs next to others that seeds reach: it has no streams at all, or the
// rate 0 of a fault.
bool StandsAlone(const EngineOptions& engine, const SweepRun& run) {
  for (const std::string& setting : Split(run.settings)) {
    const size_t equals = std::min(setting.find('='), setting.size());
    const std::string value = equals < setting.size() ? setting.substr(equals + 1) : "";
    if (setting.substr(0, equals).find("fault_") != std::string::npos && std::strtod(value.c_str(), nullptr) == 0) {
      return true;
    }
  }
  const auto in_streams = [&](const ScOperatorConfigs& operators) {
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      const bool is_attention = id == ScOperatorId::kQk || id == ScOperatorId::kAv;
      if (id == ScOperatorId::kLmHead && !engine.sc.sc_lm_head) continue;
      if (is_attention && engine.sc.attention == AttentionMode::kExact) continue;
      const ScConfig& op = operators[static_cast<size_t>(i)];
      if (op.arith == ScArith::kSc && HasSource(op.gate)) return true;
    }
    return false;
  };
  return !in_streams(engine.sc.operators) && std::none_of(engine.sc.layers.begin(), engine.sc.layers.end(),
                                                          [&](const auto& layer) { return in_streams(layer.second); });
}

// The runs of a file, those of a configuration that stands alone once and without a seed.
// Errors: InvalidInput where seeds reach no number of another configuration, or of any.
std::vector<SweepRun> RunsOf(const SweepFile& file, const DecoderConfig& config) {
  std::vector<SweepRun> runs;
  bool any_reached = file.seeds.empty();
  for (size_t i = 0; i < file.runs.size(); ++i) {
    const SweepRun& run = file.runs[i];
    const bool is_first = run.seed && (i == 0 || file.runs[i - 1].configuration != run.configuration);
    if (!is_first) {
      const bool alone = run.seed && !runs.back().seed;
      if (!alone) runs.push_back(run);
      continue;
    }
    EngineOptions engine;
    bool reached = true;
    try {
      engine = WithSeed(file, run, *run.seed);
      reached = OperatorsSha256(engine.sc, config) != OperatorsSha256(WithSeed(file, run, *run.seed + 1).sc, config);
    } catch (const InvalidInput&) {  // told with the run, by whoever resolves it
    }
    any_reached = any_reached || reached;
    runs.push_back(run);
    if (reached) continue;
    SweepRun& once = runs.back();
    once.settings.pop_back();
    once.parameters.pop_back();
    once.seed.reset();
    if (StandsAlone(engine, once)) continue;
    throw InvalidInput(fmt::format(
        "seeds: nothing in run {} depends on a seed, as source=lfsr, source=random and rates of faults do: {}",
        run.configuration, Describe(WithSeed(file, once, std::nullopt).sc)));
  }
  if (any_reached) return runs;
  throw InvalidInput("seeds: nothing in the plan depends on a seed: source=lfsr, source=random and rates of faults do");
}

std::optional<size_t> FindReference(const SweepFile& file, const SweepPlan& plan) {
  if (file.reference_settings.empty()) return file.reference;
  SweepRun run;
  run.settings = file.reference_settings;
  EngineOptions engine;
  try {
    engine = WithSeed(file, run, std::nullopt);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("reference ({}): {}", fmt::join(run.settings, ","), error.what()));
  }
  const bool sc = engine.precision == Precision::kSc;
  const std::string config = sc ? Describe(engine.sc) : std::string(PrecisionName(engine.precision));
  const auto found = std::find(plan.configurations.begin(), plan.configurations.end(), config);
  if (found == plan.configurations.end()) {
    throw InvalidInput("reference = " + config + ": is no configuration of the plan");
  }
  return static_cast<size_t>(found - plan.configurations.begin());
}

std::string KeyOf(const SweepFile& file, const SweepPlan& plan, const PlannedRun& run, const std::string& model_sha,
                  const std::string& text_sha, const std::string& energy_sha, const std::string& version) {
  const ScModelFiles& files = run.engine.sc.files;
  nlohmann::json key = {{"version", version},
                        {"model", model_sha},
                        {"text", text_sha},
                        {"config", run.config},
                        {"files", {{"mp", files.mp_sha}, {"smooth", files.smooth_sha}, {"mask", files.mask_sha}}},
                        {"max_windows", plan.max_windows},
                        {"ctx", plan.ctx},
                        {"metrics", plan.metrics}};
  if (!file.array.empty()) key["array"] = file.array;
  if (!file.tokenizer.empty()) key["ids"] = Sha256Hex(JsonText(nlohmann::json(plan.ids)));
  if (!energy_sha.empty()) key["files"]["energy"] = energy_sha;
  return Sha256Hex(JsonText(key));
}

void CheckMetrics(const SweepFile& file) {
  std::vector<std::string> names;
  for (const auto& [name, help] : SweepMetrics()) names.push_back(name);
  for (const std::string& metric : file.metrics) {
    if (std::find(names.begin(), names.end(), metric) != names.end()) continue;
    throw InvalidInput(
        fmt::format("metrics: {} is none that a sweep computes: allowed are {}", metric, fmt::join(names, ", ")));
  }
  const auto has = [&](const char* metric) {
    return std::find(file.metrics.begin(), file.metrics.end(), metric) != file.metrics.end();
  };
  if (has("cycles") && file.array.empty()) throw InvalidInput("metrics: cycles takes array = \"R,C,K[,FILL]\"");
  if (has("energy") != !file.energy.empty()) {
    throw InvalidInput(has("energy") ? "metrics: energy takes a table of prices: \"energy\": \"FILE\" in the plan"
                                     : "energy: a table of prices goes together with the metric energy");
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> SweepMetrics() {
  return {{"ppl", "perplexity, its error, mean nll"},
          {"kl", "divergence from the exact model"},
          {"cycles", "of the array"},
          {"energy", "of the table"},
          {"profile", "errors of every operator of every layer"},
          {"trace", "the groups of a trace summary"}};
}

bool SweepPlan::Has(std::string_view metric) const {
  return std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
}

SweepPlan ResolveSweep(const SweepFile& file, const std::string& version, bool verify_digest) {
  CheckMetrics(file);
  SweepPlan plan;
  plan.model = ModelPath(file.model);
  plan.metrics = file.metrics;
  if (!file.array.empty()) plan.cost.array = ParseArrayShape(file.array);
  std::string energy_sha;
  if (!file.energy.empty()) {
    plan.energy = ReadEnergy(file.energy);
    energy_sha = Sha256Hex(ReadWholeFile(file.energy)).substr(0, 16);
  }
  const ModelFiles files = OpenModelFiles(plan.model);
  plan.model_name = files.name;
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer({plan.model, ModelPath(file.tokenizer), 0}, files);
  if (tokenizer == nullptr) throw InvalidInput(files.name + ": has no tokenizer: give tokenizer = \"FOLDER\"");
  const std::string text = ReadTextFile(file.text);
  plan.ids = tokenizer->Encode(text, {});
  const int64_t longest = files.config.max_position_embeddings;
  plan.ctx = file.ctx > 0 ? file.ctx : std::min(kDefaultCtx, longest);
  if (plan.ctx < 2 || plan.ctx > longest)
    throw InvalidInput(fmt::format("ctx = {}: allowed is {}", plan.ctx, RangeText(2, longest)));
  const int64_t windows = static_cast<int64_t>(plan.ids.size()) / plan.ctx;
  if (windows < std::max<int64_t>(file.max_windows, 1)) {
    throw InvalidInput(fmt::format("max_windows = {}: {} has {} windows of {} tokens",
                                   std::max<int64_t>(file.max_windows, 1), file.text, windows, plan.ctx));
  }
  plan.max_windows = file.max_windows > 0 ? file.max_windows : windows;
  if (plan.Has("kl") && plan.max_windows * (plan.ctx - 1) < 2) {
    throw InvalidInput("metrics: kl takes at least two predictions");
  }

  plan.windows_per_row = file.windows_per_row;
  CheckParts(plan);
  if (plan.Has("profile")) {
    ProfileOptions profile;
    profile.ctx = plan.ctx;
    profile.max_windows = plan.max_windows;
    CheckProfile(files.config, plan.ids.size(), profile);
  }
  const int threads = UsableThreads();
  const std::string model_sha = FindDigest(files, threads, verify_digest, [] { return InterruptFlag().load(); });
  ThrowIfInterrupted();
  plan.base = {version, model_sha, IdsDigest(plan.ids), "fp32", plan.ctx};
  const std::string text_sha = Sha256Hex(text);
  std::set<std::string> notices;
  std::map<std::string, size_t> seen;
  const std::vector<SweepRun> runs = RunsOf(file, files.config);
  for (size_t i = 0; i < runs.size(); ++i) {
    PlannedRun run;
    run.parameters = runs[i].parameters;
    run.configuration = runs[i].configuration;
    run.seed = runs[i].seed;
    try {
      const ArithmeticOptions arithmetic = ArithmeticOf(file, runs[i]);
      run.engine = EngineOf(arithmetic, &notices);
      SeedFaults(runs[i], run.seed, &run.engine.sc);
      const bool sc = run.engine.precision == Precision::kSc;
      if (sc) run.operators = OperatorsSha256(run.engine.sc, files.config);
      run.config = sc ? Describe(run.engine.sc) : arithmetic.precision;
      run.key = KeyOf(file, plan, run, model_sha, text_sha, energy_sha, version);
      const auto [same, added] = seen.emplace(run.key, i);
      if (!added) throw InvalidInput(fmt::format("is the same configuration as run {}: {}", same->second, run.config));
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("run {} ({}): {}", i, fmt::join(runs[i].settings, ","), error.what()));
    }
    run.engine.context = plan.ctx;
    if (run.configuration == plan.configurations.size()) {
      const EngineOptions plain = WithSeed(file, runs[i], std::nullopt);
      plan.configurations.push_back(plain.precision == Precision::kSc ? Describe(plain.sc) : run.config);
    }
    plan.runs.push_back(std::move(run));
  }
  plan.has_seeds = !file.seeds.empty();
  plan.reference = FindReference(file, plan);
  for (const std::string& notice : notices) spdlog::warn(notice);
  FindEqualRuns(&plan);
  return plan;
}

}  // namespace stoch::cli
