// SPDX-License-Identifier: Apache-2.0
// stoch perplexity: how well a model predicts a text, in one or several configurations.

#include "engine/perplexity.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "app/interrupt.h"
#include "app/options/cost_options.h"
#include "app/options/shard.h"
#include "app/options/value_rules.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/report/cost.h"
#include "app/report/kl.h"
#include "app/report/nll.h"
#include "app/report/table.h"
#include "app/run_on_ranks.h"
#include "app/version.h"
#include "engine/digest_cache.h"
#include "engine/kl_divergence.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/json_text.h"
#include "loader/sha256.h"
#include "research/prediction_part.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultCtx = 2048;

struct Options {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  OutputOptions output;
  std::string file;
  int64_t ctx = 0;
  int64_t max_windows = 0;
  std::vector<std::string> configs;
  std::string kl_base;
  bool verify_digest = false;
  std::string windows, nll;
  std::vector<std::string> merge;
  std::string kl;
  CostFlags cost;
};

// One line of the table.
struct Row {
  std::string name;
  std::string precision;
  std::string sc;
  PerplexityResult result;
  std::optional<KlSummary> kl;
  std::optional<ScCost> cost;  // of a run in SC
};

// What --config says: "fp32", "fp16", or SC settings, which the files of the command line go with.
ArithmeticOptions ArithmeticOf(const std::string& config, const ScFileOptions& files) {
  if (config == "fp32" || config == "fp16") return {.precision = config, .sc = {}};
  return {.precision = "sc", .sc = {config}, .files = files};
}

// Of all runs.
struct Shared {
  std::shared_ptr<Backend> backend;
  std::string text;
  std::vector<int32_t> ids;
  CostOptions cost;
  std::optional<EnergyTable> energy;
  std::unique_ptr<TraceWriter> trace;  // may be null
};

// The tokens of a window.
int64_t WindowTokens(const Options& options, const DecoderConfig& config) {
  return options.ctx > 0 ? options.ctx : std::min(kDefaultCtx, config.max_position_embeddings);
}

// The origin of --kl-base: reads all weights where their digest is not kept.
KlBaseOrigin OriginOf(const Options& options, const Shared& shared, const std::string& config, int64_t ctx) {
  const int threads = options.device.threads > 0 ? options.device.threads : UsableThreads();
  KlBaseOrigin origin{VersionLine(), "", IdsDigest(shared.ids), config, ctx};
  origin.model_sha256 = FindDigest(OpenModelFiles(options.model.model), threads, options.verify_digest,
                                   [] { return InterruptFlag().load(); });
  ThrowIfInterrupted();
  return origin;
}

// The windows of this task, and what all tasks have in common.
PredictionPart BeginPart(const Options& options, const Shared& shared, const Row& row, int64_t ctx,
                         const Engine& engine) {
  const Shard shard = ParseShard("--windows", options.windows);
  PredictionPart part;
  part.ctx = ctx;
  part.tokens = static_cast<int64_t>(shared.ids.size());
  part.total_windows = part.tokens / ctx;
  if (options.max_windows > 0) part.total_windows = std::min(part.total_windows, options.max_windows);
  for (auto i = static_cast<int64_t>(shard.index); i < part.total_windows; i += static_cast<int64_t>(shard.count)) {
    part.windows.push_back(i);
  }
  part.has_kl = !options.kl.empty();
  part.config = row.sc;
  part.precision = row.precision;
  part.model = engine.model_name();
  const KlBaseOrigin origin = OriginOf(options, shared, row.name, ctx);
  const ScModelFiles& files = engine.options().sc.files;
  part.key = Sha256Hex(JsonText(Json{{"version", origin.version},
                                     {"model", origin.model_sha256},
                                     {"ids", origin.ids_sha256},
                                     {"config", origin.config},
                                     {"files", {files.mp_sha, files.smooth_sha, files.mask_sha}},
                                     {"ctx", ctx},
                                     {"windows", part.total_windows},
                                     {"kl", part.has_kl}}));
  return part;
}

Row Evaluate(const Options& options, const ArithmeticOptions& arithmetic, const Shared& shared, bool* interrupted) {
  EngineOptions engine_options;
  Apply(arithmetic, &engine_options);
  ModelFiles files = OpenModelFiles(options.model.model);
  const int64_t ctx = WindowTokens(options, files.config);
  engine_options.context = options.model.context > 0 ? options.model.context : ctx;
  FitWindows(ctx, shared.backend->devices().front().kind, &engine_options);
  if (!options.kl.empty()) engine_options.base_rows = KlUploadRows(files.config.vocab_size);
  const std::unique_ptr<Engine> engine =
      OpenEngine(shared.backend, std::move(files), engine_options, options.device, options.output);

  Row row;
  row.precision = PrecisionName(engine->options().precision);
  row.sc = engine->sc_description();
  row.name = row.sc.empty() ? row.precision : row.sc;

  const std::unique_ptr<ScCostCollector> collector = CollectCost(*engine, shared.cost, shared.trace.get());
  ProgressBar bar("perplexity", options.output.quiet);
  PerplexityOptions evaluation{.ctx = ctx, .max_windows = options.max_windows, .on_window = {}, .on_logits = {}};
  PredictionPart part;
  if (!options.nll.empty()) {
    part = BeginPart(options, shared, row, ctx, *engine);
    evaluation.windows = part.windows;
    evaluation.on_nll = [&part](double nll) { part.nll.push_back(nll); };
  }
  evaluation.on_window = [&](const PerplexityResult& so_far, int64_t total_windows) {
    row.result = so_far;
    bar.Update(so_far.windows, total_windows);
    ThrowIfInterrupted();
  };
  std::optional<KlBaseWriter> writer;
  std::optional<KlBaseReader> reader;
  KlComparison comparison(*shared.backend, engine->config().vocab_size);
  if (!options.kl_base.empty()) {
    // Once the text is known to have a window: a file that is there is not emptied for nothing.
    evaluation.on_begin = [&, origin = OriginOf(options, shared, row.name, ctx)](std::span<const int32_t>) {
      if (!writer) writer.emplace(options.kl_base, engine->config().vocab_size, origin);
    };
    evaluation.on_logits = [&](const TensorView& logits, std::span<const int32_t> targets) {
      writer->Add(*shared.backend, logits, targets);
    };
  } else if (!options.kl.empty()) {
    reader.emplace(options.kl, engine->config().vocab_size);
    evaluation.on_logits = [&, seen = int64_t{0}](const TensorView& logits, std::span<const int32_t> targets) mutable {
      // The rows of a window lie together in the file; targets are of one window.
      if (!options.nll.empty()) {
        reader->Seek(part.windows[static_cast<size_t>(seen / (ctx - 1))] * (ctx - 1) + seen % (ctx - 1));
      }
      comparison.Add(*reader, logits, targets);
      seen += static_cast<int64_t>(targets.size());
    };
  }
  try {
    row.result = EvaluatePerplexity(*engine, shared.ids, evaluation);
  } catch (const Interrupted&) {
    *interrupted = true;
  }
  bar.Clear();
  if (writer) writer->Close();
  if (reader && row.result.predictions > 1) row.kl = comparison.Summary();
  if (!options.nll.empty() && !*interrupted) {
    part.elapsed_ms = row.result.elapsed_ms;
    part.comparisons.assign(comparison.rows().begin(), comparison.rows().end());
    WritePredictionPart(options.nll, part);
  }
  if (collector == nullptr) return row;
  row.cost = collector->Cost();
  FinishTrace(shared.trace.get(), *collector, *engine, OpenModelFiles(options.model.model), shared.text, VersionLine());
  return row;
}

// A number of predictions, of which there may be none: in a task with no window, or a run that was interrupted in its first.
Json NumberJson(const Row& row, double value) { return row.result.predictions > 0 ? Json(value) : Json(nullptr); }

Json RowJson(const Row& row, const std::optional<EnergyTable>& energy) {
  Json json = {{"precision", row.precision},
               {"sc", row.sc},
               {"windows", row.result.windows},
               {"predictions", row.result.predictions},
               {"mean_nll", NumberJson(row, row.result.mean_nll)},
               {"ppl", NumberJson(row, row.result.ppl)},
               {"ppl_error", NumberJson(row, row.result.ppl_error)},
               {"elapsed_ms", row.result.elapsed_ms}};
  json["nll_by_window"] = NllJson(row.result);
  if (row.kl) json["kl"] = KlJson(*row.kl);
  if (row.cost) json["sc_cost"] = row.cost->ToJson();
  if (row.cost && energy) json["energy"] = EnergyJson(PriceCost(*row.cost, *energy), *energy);
  return json;
}

void Report(const Options& options, const std::string& model, int64_t tokens, const std::optional<EnergyTable>& energy,
            const std::vector<Row>& rows) {
  if (options.output.json) {
    Json results = Json::array();
    for (const Row& row : rows) results.push_back(RowJson(row, energy));
    PrintLine(JsonText(Json{{"model", model}, {"tokens", tokens}, {"results", results}}));
    return;
  }
  const bool kl = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.kl.has_value(); });
  std::vector<std::string> header = {"configuration", "windows",      "predictions", "mean nll",
                                     "ppl",           "+- of tokens", "seconds"};
  if (kl) header.insert(header.end(), {"mean KLD", "99 % KLD", "same top", "RMS dp"});
  const bool cost = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.cost.has_value(); });
  const bool cycles = cost && !options.cost.array.empty();
  if (cost) header.emplace_back("avg length");
  if (cycles) header.emplace_back("cycles");
  if (energy) header.emplace_back("energy pJ");
  Table table(header);
  for (const Row& row : rows) {
    const bool any = row.result.predictions > 0;
    std::vector<std::string> cells = {row.name,
                                      std::to_string(row.result.windows),
                                      std::to_string(row.result.predictions),
                                      any ? fmt::format("{:.5f}", row.result.mean_nll) : "-",
                                      any ? fmt::format("{:.4f}", row.result.ppl) : "no windows",
                                      any ? fmt::format("{:.4f}", row.result.ppl_error) : "-",
                                      fmt::format("{:.1f}", row.result.elapsed_ms / 1000)};
    if (kl && row.kl) {
      const std::vector<std::string> kl_cells = KlCells(*row.kl);
      cells.insert(cells.end(), kl_cells.begin(), kl_cells.end());
    }
    cells.resize(header.size() - (cost ? 1 : 0) - (cycles ? 1 : 0) - (energy ? 1 : 0));
    if (row.cost) {
      cells.push_back(LengthText(row.cost->mac_average()));
      if (cycles) cells.push_back(ToText(row.cost->array().cycles));
      if (energy) cells.push_back(fmt::format("{:.6g}", PriceCost(*row.cost, *energy).total));
    }
    cells.resize(header.size());
    table.Add(cells);
  }
  Print(table.Markdown());
  if (rows.size() == 1 && rows[0].kl) Print("\n" + KlText(*rows[0].kl));
  if (rows.size() > 1 || !rows[0].cost || rows[0].result.predictions == 0) return;
  Print("\n" + CostText(*rows[0].cost));
  if (energy) Print(EnergyText(PriceCost(*rows[0].cost, *energy)));
}

// The numbers of one run from the windows of several.
ExitCode Merge(const Options& options) {
  std::vector<PredictionPart> parts;
  for (const std::string& name : options.merge) parts.push_back(ReadPredictionPart(name));
  const PredictionPart all = MergePredictionParts(parts, options.merge);
  Row row{.name = all.config.empty() ? all.precision : all.config,
          .precision = all.precision,
          .sc = all.config,
          .result = {},
          .kl = {},
          .cost = {}};
  row.result = SumNll(all.nll, all.ctx - 1);
  row.result.elapsed_ms = all.elapsed_ms;
  KlStatistics statistics;
  statistics.Add(all.comparisons);
  if (all.comparisons.size() > 1) row.kl = statistics.Summary();
  Report(options, all.model, all.tokens, {}, {row});
  return kDone;
}

// Options that parts of a run cannot have. Errors: InvalidInput.
void CheckParts(const Options& options, size_t runs) {
  if (options.nll.empty() != options.windows.empty()) throw InvalidInput("--windows and --nll: give both of them");
  if (options.nll.empty()) return;
  (void)ParseShard("--windows", options.windows);
  if (runs > 1) throw InvalidInput("--windows: divides one configuration, got " + std::to_string(runs));
  if (!options.kl_base.empty()) throw InvalidInput("--windows: a file of --kl-base has all windows in order");
  if (!options.cost.trace.empty() || !options.cost.array.empty() || !options.cost.energy.empty()) {
    throw InvalidInput("--windows: --trace, --array and --energy are of whole runs");
  }
  CheckCanWrite(options.nll);
}

// What of the model's header and the options does not go together, before the text is read. Errors: InvalidInput naming the option
// or the file.
void CheckWithModel(const Options& options, const DecoderConfig& config) {
  const int64_t ctx = WindowTokens(options, config);
  if (options.model.context > 0 && ctx > options.model.context) {
    throw InvalidInput(
        fmt::format("--context {}: expected at least a window of {} tokens (--ctx)", options.model.context, ctx));
  }
  if (!options.kl.empty()) (void)KlBaseReader(options.kl, config.vocab_size);
  if (!options.kl_base.empty()) CheckCanWrite(options.kl_base);
}

// Errors: InvalidInput naming the text, before weights are read.
void RequireWindow(const Options& options, size_t tokens, int64_t ctx) {
  if (static_cast<int64_t>(tokens) >= ctx) return;
  throw InvalidInput(fmt::format("{}: has {} tokens; expected at least one window of {} (--ctx)",
                                 options.file == "-" ? "standard input" : options.file, tokens, ctx));
}

ExitCode Run(const Options& options) {
  if (!options.merge.empty()) return Merge(options);
  for (const auto& [name, value] : {std::pair("--model", options.model.model), std::pair("--file", options.file)}) {
    if (value.empty()) throw InvalidInput(std::string(name) + " is required");
  }
  std::vector<ArithmeticOptions> runs = {options.arithmetic};
  if (!options.configs.empty()) runs.clear();
  for (const std::string& config : options.configs) runs.push_back(ArithmeticOf(config, options.arithmetic.files));
  if (!options.kl_base.empty() && runs.size() > 1) {
    throw InvalidInput("--kl-base: records one configuration, got " + std::to_string(runs.size()));
  }
  bool any_sc = false;
  for (const ArithmeticOptions& run : runs) {
    EngineOptions checked;
    Apply(run, &checked);
    any_sc = any_sc || checked.precision == Precision::kSc;
  }
  CheckParts(options, runs.size());
  Shared shared;
  shared.cost = ParseCostOptions(options.cost, any_sc);
  shared.energy = ReadEnergy(options.cost, any_sc);
  const ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  if (tokenizer == nullptr) throw InvalidInput(files.name + ": has no tokenizer; give --tokenizer DIR");
  CheckWithModel(options, files.config);
  shared.text = ReadTextFile(options.file);
  shared.ids = tokenizer->Encode(shared.text, {});
  RequireWindow(options, shared.ids.size(), WindowTokens(options, files.config));
  shared.trace = OpenTrace(options.cost, runs.size());
  shared.backend = Open(options.device);

  std::vector<Row> rows;
  bool interrupted = false;
  for (size_t i = 0; i < runs.size() && !interrupted; ++i) {
    rows.push_back(Evaluate(options, runs[i], shared, &interrupted));
  }
  Report(options, files.name, static_cast<int64_t>(shared.ids.size()), shared.energy, rows);
  if (interrupted) throw Interrupted{};
  return kDone;
}

}  // namespace

CommandBody AddPerplexity(CLI::App& command) {
  command.description("Mean negative log-likelihood and perplexity over the windows of a text");
  command.footer(
      "Examples:\n"
      "  stoch perplexity --model DIR --file wiki.test.raw --ctx 2048\n"
      "  stoch perplexity --model DIR --file text --config fp32 --config preset=published --config stoc_len=64\n"
      "  stoch perplexity --model DIR --file text --precision fp32 --kl-base base.bin\n"
      "  stoch perplexity --model DIR --file text --sc stoc_len=64 --kl base.bin\n"
      "  stoch perplexity --model DIR --file text --windows 0/3 --nll part0.nll\n"
      "  stoch perplexity --merge part0.nll part1.nll part2.nll\n"
      "  stoch perplexity --model DIR --file text --mp table.json --array 32,32,64");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->model);
  command.add_option("--file", options->file, "The text; - is standard input");
  command.add_option("--ctx", options->ctx, "Tokens of a window; default 2048, or the model's limit")
      ->check(CLI::Range(int64_t{2}, kMostTokens));
  command.add_option("--max-windows", options->max_windows, "Only the first so many; 0 = all")
      ->check(CLI::Range(int64_t{0}, kMostTokens));
  AddArithmeticOptions(command, &options->arithmetic);
  auto* config =
      command.add_option("--config", options->configs, "fp32, fp16 or SC settings; repeat it for a table of several");
  config->allow_extra_args(false);
  config->excludes(command.get_option("--sc"))->excludes(command.get_option("--precision"));
  auto* kl_base = command.add_option("--kl-base", options->kl_base, "Write every prediction's logits to this file");
  KeepInputs(command, "--kl-base");
  command
      .add_flag("--verify-digest", options->verify_digest,
                "With --kl-base: read all weights for their digest, also where stoch inspect --digest has kept it")
      ->needs(kl_base);
  command.add_option("--kl", options->kl, "Compare with the logits in this file")->excludes(kl_base);
  auto* windows = command.add_option("--windows", options->windows, "i/n: only the windows whose index is i mod n");
  command.add_option("--nll", options->nll, "With --windows: what every prediction has, for --merge")->needs(windows);
  command.add_option("--merge", options->merge,
                     "Files of --nll with all windows of a run, in any order: its numbers; of the other options only "
                     "--json");
  AddCostOptions(command, &options->cost);
  AddDeviceOptions(command, &options->device);
  AddRankOptions(command, &options->device.ranks);
  AddOutputOptions(command, &options->output);
  ExcludeOthers(command, "--merge", {"--json", "--quiet"});
  return [options] { return RunOnRanks(&options->device, options->model.model, [options] { return Run(*options); }); };
}

}  // namespace stoch::cli
