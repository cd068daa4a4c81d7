// SPDX-License-Identifier: Apache-2.0
// stoch sweep: many configurations of one model over one text, in a file that survives kills and can be divided.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/common_options.h"
#include "app/interrupt.h"
#include "app/options/shard.h"
#include "app/options/value_rules.h"
#include "app/output.h"
#include "app/run_on_ranks.h"
#include "app/version.h"
#include "kernels/base/error.h"
#include "kernels/registry.h"
#include "loader/file.h"
#include "loader/json_text.h"
#include "loader/research/sweep_file.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/research/sweep_log.h"
#include "tools/stoch/research/sweep_merge.h"
#include "tools/stoch/research/sweep_parts.h"
#include "tools/stoch/research/sweep_plan.h"
#include "tools/stoch/research/sweep_report.h"
#include "tools/stoch/research/sweep_same.h"
#include "tools/stoch/research/sweep_summary.h"

namespace stoch::cli {
namespace {

struct Options {
  std::string file, out, shard, plot, kl_base;
  std::vector<std::string> merge;
  bool verify_digest = false;
  bool resume = false, tsv = false, timing = false;
  OutputOptions output;
  DeviceOptions device;
};

// Exact logits next to the output while runs are compared with them.
class BaseFile {
 public:
  explicit BaseFile(std::string path) : path_(std::move(path)) {}
  BaseFile(const BaseFile&) = delete;
  BaseFile& operator=(const BaseFile&) = delete;
  ~BaseFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void RequireAbsent(const std::string& path) {
  if (std::filesystem::exists(path)) throw InvalidInput(path + " exists: --resume continues it");
}

SweepPlan ReadPlan(const Options& options) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  const SweepFile file = ParseSweepFile(ReadSmallFile(options.file, kMaxBytes), options.file);
  if (!file.unknown_keys.empty()) {
    spdlog::warn("{}: keys that are not known and have no effect: {}", options.file,
                 fmt::join(file.unknown_keys, ", "));
  }
  try {
    return ResolveSweep(file, VersionLine(), options.verify_digest);
  } catch (const InvalidInput& error) {
    throw InvalidInput(options.file + ": " + error.what());
  }
}

// "run", or where a plan is divided by windows "part".
const char* RowsAre(const SweepPlan& plan) { return plan.runs[0].windows > 0 ? "part" : "run"; }
std::string NameOf(const PlannedRun& run) {
  if (run.windows == 0) return run.config;
  return fmt::format("{}, windows {}..{}", run.config, run.first_window, run.first_window + run.windows - 1);
}

// Every run of the plan that no file has, with the command that makes it. Errors: InvalidInput where there is one.
void RequireComplete(const Options& options, const SweepPlan& plan, const MergedSweep& merged,
                     const std::vector<std::string>& texts) {
  if (merged.missing_runs.empty()) return;
  for (const size_t run : merged.missing_runs) {
    spdlog::error("{} {} of {} is missing: {}: {}", RowsAre(plan), run, plan.runs.size(), NameOf(plan.runs[run]),
                  CommandOfRun(plan, options.file, run, options.merge, texts));
  }
  throw InvalidInput(fmt::format("--merge: {} of the {} {}s of {} are missing: nothing is written",
                                 merged.missing_runs.size(), plan.runs.size(), RowsAre(plan), options.file));
}

std::string JoinLines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

ExitCode Merge(const Options& options) {
  RequireAbsent(options.out);
  std::vector<std::string> texts;
  for (const std::string& name : options.merge) texts.push_back(ReadWholeFile(name));
  if (options.file.empty()) {
    const std::string text = MergeShards(options.merge, texts);
    if (HasParts(text)) throw InvalidInput("--merge: the rows are of windows of runs: give the plan");
    if (HasSeeds(text)) throw InvalidInput("--merge: the rows have seeds: give the plan, which their summaries need");
    spdlog::warn("--merge: not compared with a plan: shards that all lack their last rows look complete");
    WriteWholeFile(options.out, text);
    const size_t failed = CountFailed(text);
    if (failed > 0) spdlog::error("{} rows say an error", failed);
    return failed > 0 ? kCheckFailed : kDone;
  }
  const SweepPlan plan = ReadPlan(options);
  const SweepPlan parts = DivideRuns(plan);
  const MergedSweep merged = MergeWithPlan(parts, options.merge, texts);
  RequireComplete(options, parts, merged, texts);
  WriteWholeFile(options.out, JoinLines(FinishedLines(plan, JoinParts(plan, parts, merged.rows))));
  for (const size_t run : merged.failed_runs) {
    spdlog::error("{} {} failed: {}", RowsAre(parts), run, NameOf(parts.runs[run]));
  }
  return merged.failed_runs.empty() ? kDone : kCheckFailed;
}

// Ranks agree on program and model, before any work. Errors: InvalidInput; a metric that looks at every layer.
void CheckRanks(const Options& options, const SweepPlan& plan) {
  if (options.device.ranks.job == nullptr) return;
  if (plan.Has("profile")) throw InvalidInput("--ranks: profile observes every layer: give one machine");
  EngineOptions engine;
  engine.context = plan.ctx;
  (void)PlanRanks(*Open(options.device), OpenModelFiles(plan.model), engine, options.device);
}

// Refuses runs in fp16 before any work where there is no GPU. Errors: InvalidInput naming the first.
void CheckDevice(const Options& options, const SweepPlan& plan, const std::vector<size_t>& runs) {
  const auto half = std::find_if(runs.begin(), runs.end(),
                                 [&](size_t run) { return plan.runs[run].engine.precision == Precision::kFp16; });
  if (half == runs.end()) return;
  std::string told_later;
  const std::shared_ptr<Backend> backend =
      OpenBackend(options.device.device, {.threads = options.device.threads, .cpu_variant = options.device.cpu_variant},
                  &told_later);
  if (backend->devices().front().kind != DeviceKind::kCpu) return;
  throw InvalidInput(fmt::format("{}: {} {} ({}): precision fp16 needs a GPU, and --device {} is a CPU", options.file,
                                 RowsAre(plan), *half, NameOf(plan.runs[*half]), options.device.device));
}

void RunAll(const Options& options, const SweepPlan& plan, const std::vector<size_t>& mine, SweepLog* log) {
  std::vector<size_t> todo;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (!log->Done(i)) todo.push_back(i);
  }
  if (todo.empty()) return;
  CheckDevice(options, plan, todo);
  const std::shared_ptr<Backend> backend = Open(options.device);
  std::optional<BaseFile> own_base;
  std::string base = options.kl_base;
  if (plan.Has("kl") && base.empty()) {
    base = own_base.emplace(options.out + ".base").path();
    WriteBase(plan, backend, options.device, base);
  }
  for (const size_t i : todo) {
    ThrowIfInterrupted();
    const PlannedRun& run = plan.runs[mine[i]];
    std::optional<SweepRow> equal = RowOfEqualRun(plan, run, log->Rows());
    const SweepRow row = equal
                             ? std::move(*equal)
                             : WithSameAs(plan, run, RunOne(plan, run, backend, options.device, base, options.timing));
    log->Put(i, row.text, row.failed);
    if (row.failed) {
      const std::string reason = nlohmann::json::parse(row.text).value("error", "failed");
      spdlog::error("{} {} ({} of {}): {}: {}", RowsAre(plan), mine[i], i + 1, mine.size(), NameOf(run), reason);
    } else if (!options.output.quiet) {
      spdlog::info("{} {} ({} of {}): {}", RowsAre(plan), mine[i], i + 1, mine.size(), NameOf(run));
    }
  }
}

std::string SummaryJson(const Options& options, const SweepLog& log) {
  return JsonText(
      nlohmann::ordered_json{{"output", options.out}, {"rows", log.Rows().size()}, {"failed", log.failed().size()}});
}

ExitCode Run(const Options& options) {
  if (!options.merge.empty()) return Merge(options);
  if (options.file.empty()) throw InvalidInput("stoch sweep: give a plan, or --merge and shards");
  const Shard shard = ParseShard("--shard", options.shard);
  std::optional<SweepPlot> plot;
  if (!options.plot.empty()) plot = ParseSweepPlot(options.plot);
  if (plot && plot->file.empty()) plot->file = options.out + ".svg";
  if (!options.resume) RequireAbsent(options.out);
  SweepPlan plan = ReadPlan(options);
  const bool is_divided = !options.shard.empty() && plan.windows_per_row > 0;
  if (is_divided) plan = DivideRuns(std::move(plan));
  if (is_divided && (plot || options.tsv)) {
    throw InvalidInput("--tsv, --plot: rows of windows_per_row are parts of runs: merge them first");
  }
  if (!options.kl_base.empty()) {
    if (!plan.Has("kl")) throw InvalidInput("--kl-base: the plan has no metric kl");
    CheckBase(plan, options.kl_base);
  }
  if (plot) {
    CheckPlot(plan, *plot);
    CheckCanWrite(plot->file);
  }
  CheckRanks(options, plan);
  std::vector<size_t> mine;
  std::vector<std::string> keys;
  for (size_t i = shard.index; i < plan.runs.size(); i += shard.count) {
    mine.push_back(i);
    keys.push_back(plan.runs[i].key);
  }
  if (!options.resume) CheckDevice(options, plan, mine);  // before the file is there; else of runs that are left
  SweepLog log(options.out, keys, options.resume);
  RunAll(options, plan, mine, &log);
  const bool whole = shard.count == 1 && (plan.has_seeds || plan.reference);
  if (whole) log.Replace(FinishedLines(plan, log.Rows()));
  if (plot) WriteWholeFile(plot->file, SweepSvg(plan, *plot, log.Rows()));
  if (options.tsv) Print(SweepTsv(plan, log.Rows()));
  if (options.output.json) PrintLine(SummaryJson(options, log));
  return log.AnyFailed() ? kCheckFailed : kDone;
}

}  // namespace

CommandBody AddSweep(CLI::App& command) {
  std::string metrics;
  for (const auto& [name, help] : SweepMetrics()) metrics += (metrics.empty() ? "" : ", ") + name + " (" + help + ")";
  command.description("Many configurations of one model over one text: a row each, resumable and divisible");
  command.footer(fmt::format(
      "The plan: {{\"model\", \"text\", \"tokenizer\", \"max_windows\", \"ctx\", \"windows_per_row\", \"array\": "
      "\"R,C,K\", "
      "\"energy\": FILE, \"base\": "
      "SETTINGS, \"grid\": {{NAME: "
      "[values]}}, \"runs\": [SETTINGS], \"files\": {{\"mp\", \"smooth\", \"mask\"}}, \"metrics\", \"seeds\": "
      "[numbers] or \"repeat\": N, \"reference\": INDEX or SETTINGS}}; "
      "SETTINGS as --sc takes "
      "them, fp32, fp16, mp=FILE, mp_normalise=, smooth=, mask=, mask_bits=, and series=NAME for plots.\n"
      "Metrics: {}.\n"
      "Examples:\n"
      "  stoch sweep plan.json -o out.jsonl\n"
      "  stoch sweep plan.json -o out.jsonl --resume --tsv --plot x=mac_avg_stoc_len,y=ppl\n"
      "  stoch sweep plan.json -o part0.jsonl --shard 0/2\n"
      "  stoch sweep plan.json --merge part0.jsonl part1.jsonl -o out.jsonl",
      metrics));
  auto options = std::make_shared<Options>();
  command.add_option("plan", options->file, "The plan (JSON)");
  command.add_option("-o,--output", options->out, "The rows (JSON lines)")->required();
  KeepInputs(command, "--output");
  command.add_flag("--resume", options->resume, "Continue: rows without an error stay, a torn last line goes");
  command.add_option(
      "--shard", options->shard,
      "i/n: only the runs whose index is i mod n, or the parts of runs, where the plan has windows_per_row");
  command.add_option(
      "--merge", options->merge,
      "Shards, to the rows of one run: those of the plan, or without one complete shards 0/n, 1/n, ... in this order; "
      "of the other options only --output and --verify-digest");
  command.add_option(
      "--kl-base", options->kl_base,
      "Exact logits of stoch perplexity --precision fp32 --kl-base, for all shards; default: made first");
  command.add_flag("--verify-digest", options->verify_digest,
                   "Read all weights for their digest, also where stoch inspect --digest has kept it");
  command.add_flag("--tsv", options->tsv, "Print model, config, metric, value at the end");
  command.add_option(
      "--plot", options->plot,
      "x=NAME,y=NAME[,by=NAME+NAME][,log=x+y][,error=ci|sd|minmax][,kind=box][,baseline=VALUE|SERIES|CONFIG|"
      "KEY][,front=0][,size=WxH][,font=PT][,file=FILE]: an SVG with the Pareto front, OUTPUT.svg by default; error "
      "and "
      "kind=box: means of seeds and their spread; baseline, any number of times: a line at a number or a run's "
      "value; "
      "x=layer,y=stoc_len: lengths by layer, of the metric trace");
  command.add_flag("--timing", options->timing, "Rows say how long they took: no two sweeps have the same bytes then");
  AddDeviceOptions(command, &options->device);
  AddRankOptions(command, &options->device.ranks);
  AddOutputOptions(command, &options->output);
  ExcludeOthers(command, "--merge", {"plan", "--output", "--verify-digest", "--quiet", "--config"});
  command.get_option("--json")->description("Print one JSON object at the end: the file, its rows, how many failed");
  command.get_option("--json")->excludes(command.get_option("--tsv"));
  return [options] { return RunOnRanks(&options->device, "", [options] { return Run(*options); }); };
}

}  // namespace stoch::cli
