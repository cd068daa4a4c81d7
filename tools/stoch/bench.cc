// SPDX-License-Identifier: Apache-2.0
// stoch bench: time per token, several precisions side by side in one process.

#include "app/report/bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/common_options.h"
#include "app/demo_model.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/run_on_ranks.h"
#include "app/version.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "kernels/base/error.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/memory_plan.h"
#include "tools/stoch/bench_floor.h"
#include "tools/stoch/bench_speculation.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  ModelOptions model;
  DeviceOptions device;
  OutputOptions output;
  std::vector<std::string> precisions;
  std::vector<std::string> sc;
  ScFileOptions files;
  std::vector<int64_t> prompts;
  int64_t decode_tokens = -1;
  std::vector<int64_t> depths = {0};
  std::vector<int64_t> batches;
  std::vector<double> temperatures = {0};
  SamplingOptions sampling;  // top_k, top_p, min_p where a temperature is above 0
  std::optional<int> logprobs;
  int64_t repetitions = 5;
  std::string format = "md";
  SpeculationOptions speculation;
  bool told = false;
};

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Rows of whole pages, so that every sequence's reservation is counted.
int64_t Largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Ids that look like text in one way only: they do not repeat soon.
std::vector<int32_t> Ids(int64_t vocab_size, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 7919 + 11) % static_cast<size_t>(vocab_size));
  return ids;
}

// Runs every pending token, keeping no logits but the last row's if asked.
void RunPending(Engine& engine, Sequence& sequence, bool last_logits) {
  while (sequence.pending() > 0) {
    ThrowIfInterrupted();
    const int64_t tokens = engine.NextTokens(sequence, engine.shape().max_rows);
    const bool last = tokens == sequence.pending();
    const StepItem item{&sequence, tokens, last && last_logits ? StepOutput::kLast : StepOutput::kNone};
    engine.Step({&item, 1});
  }
}

// The same with the log-probability of every token but the first.
void RunWithLogProbs(Engine& engine, Sequence& sequence, int top) {
  while (sequence.pending() > 0) {
    ThrowIfInterrupted();
    const int64_t tokens = engine.NextTokens(sequence, engine.shape().max_rows);
    const auto next = static_cast<size_t>(sequence.computed()) + 1;
    RowQueries queries;
    queries.top = top;
    queries.targets =
        std::span(sequence.ids()).subspan(next, std::min(static_cast<size_t>(tokens), sequence.ids().size() - next));
    const StepItem item{&sequence, tokens, StepOutput::kAll, &queries};
    engine.Step({&item, 1});
  }
}

double PromptSample(Engine& engine, const BenchCase& test) {
  const std::unique_ptr<Sequence> sequence = engine.NewSequence(test.prompt);
  sequence->Append(Ids(engine.config().vocab_size, test.prompt));
  const Clock::time_point start = Clock::now();
  if (test.logprobs >= 0) {
    RunWithLogProbs(engine, *sequence, test.logprobs);
  } else {
    RunPending(engine, *sequence, true);
    (void)engine.PickedToken(0);
  }
  return MillisecondsSince(start);
}

// The sequences of a decode test, filled to their depth once.
class DecodeTest {
 public:
  DecodeTest(Engine& engine, const BenchCase& test, const SamplingOptions& sampling, int64_t steps)
      : engine_(engine), depth_(test.depth), logprobs_(test.logprobs), sampling_(sampling) {
    sampling_.temperature = test.temperature;
    for (int64_t i = 0; i < test.batch; ++i) {
      sequences_.push_back(engine.NewSequence(test.depth + steps + 1));
      if (sequences_.back() == nullptr) throw InvalidInput("the KV cache has no room for " + CaseName(test));
      sequences_.back()->Append(Ids(engine.config().vocab_size, test.depth));
      const Clock::time_point start = Clock::now();
      RunPending(engine, *sequences_.back(), false);
      engine.backend().Synchronize(engine.backend().devices().front());
      if (i == 0) fill_ms_ = MillisecondsSince(start);
    }
    next_.resize(sequences_.size());
    queries_.resize(sequences_.size());
  }

  // Mean time of one step of all sequences, every step picking its tokens from the logits of the one before. Where the
  // engine takes several steps at once, each has its share of the sequences.
  double Sample(int64_t steps) {
    for (const auto& sequence : sequences_) sequence->Truncate(depth_);
    std::fill(next_.begin(), next_.end(), 1);
    const size_t groups = std::min(sequences_.size(), static_cast<size_t>(engine_.max_steps()));
    const Clock::time_point start = Clock::now();
    for (size_t group = 0; group < groups; ++group) Begin(group, groups);
    for (int64_t step = 0; step < steps; ++step) {
      ThrowIfInterrupted();
      for (size_t group = 0; group < groups; ++group) {
        Finish(group, groups);
        if (step + 1 < steps) Begin(group, groups);
      }
    }
    return MillisecondsSince(start) / static_cast<double>(steps);
  }

  double fill_ms() const { return fill_ms_; }

 private:
  size_t First(size_t group, size_t groups) const { return sequences_.size() * group / groups; }

  void Begin(size_t group, size_t groups) {
    std::vector<StepItem> items;
    for (size_t i = First(group, groups); i < First(group + 1, groups); ++i) {
      sequences_[i]->Append({&next_[i], 1});
      queries_[i].picks = {MakePick(sampling_, {}, static_cast<int64_t>(sequences_[i]->ids().size()))};
      queries_[i].top = logprobs_;
      items.push_back({sequences_[i].get(), 1, StepOutput::kLast, &queries_[i]});
    }
    engine_.Begin(items);
  }

  void Finish(size_t group, size_t groups) {
    engine_.Finish();
    const size_t first = First(group, groups);
    for (size_t i = first; i < First(group + 1, groups); ++i) {
      next_[i] = engine_.PickedToken(static_cast<int64_t>(i - first));
    }
  }

  Engine& engine_;
  int64_t depth_;
  double fill_ms_ = 0;
  int logprobs_;
  SamplingOptions sampling_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<RowQueries> queries_;
  std::vector<int32_t> next_;
};

std::vector<BenchCase> Cases(const Options& options) {
  std::vector<BenchCase> cases;
  for (const int64_t prompt : options.prompts) {
    if (prompt > 0) cases.push_back({prompt, 0, 1});
    if (prompt > 0 && options.logprobs) cases.push_back({prompt, 0, 1, 0, *options.logprobs});
  }
  for (const int64_t depth : options.depths) {
    for (const int64_t batch : options.batches) {
      for (const double temperature : options.temperatures) {
        if (options.decode_tokens == 0) continue;
        cases.push_back({0, depth, batch, temperature});
        if (options.logprobs) cases.push_back({0, depth, batch, temperature, *options.logprobs});
      }
    }
  }
  if (cases.empty()) throw InvalidInput("-p and -n: nothing to measure, at least one must be above 0");
  return cases;
}

class Bench {
 public:
  Bench(const Options& options, std::shared_ptr<Backend> backend)
      : options_(options), backend_(std::move(backend)), cases_(Cases(options)) {
    const DeviceInfo info = backend_->info(device());
    environment_.device_name = info.name;
    environment_.device_detail = info.detail;
    for (const Device& each : backend_->devices()) {
      environment_.device += (environment_.device.empty() ? "" : ",") + DeviceName(each);
    }
    if (backend_->devices().size() > 1) environment_.split = options.device.split;
    environment_.commit = Commit();
    environment_.read_bytes_per_s = backend_->MeasureBandwidth(device());
    if (options.precisions.size() > 1) environment_.baseline = options.precisions.back();
  }

  void Run(const std::string& precision) {
    const std::vector<DeviceInfo> before = Infos();
    EngineOptions engine_options;
    ArithmeticOptions arithmetic;
    arithmetic.precision = precision;
    if (precision == "sc") {
      arithmetic.sc = options_.sc;
      arithmetic.files = options_.files;
    }
    arithmetic.own_lengths = Largest(options_.batches) > 1;
    Apply(arithmetic, &engine_options);
    const int64_t decode_length = Largest(options_.depths) + options_.decode_tokens + 1;
    engine_options.context = std::max(Largest(options_.prompts), decode_length);
    engine_options.max_sequences = Largest(options_.batches);
    engine_options.kv_tokens = std::max(RoundUpToPages(Largest(options_.prompts)),
                                        engine_options.max_sequences * RoundUpToPages(decode_length));
    ModelFiles files = OpenModelFiles(options_.model.model);
    const int64_t most = files.config.max_position_embeddings;
    if (engine_options.context > most) {
      throw InvalidInput("-p, -d and -n: need a context of " + std::to_string(engine_options.context) + " tokens, " +
                         files.name + " has at most " + std::to_string(most));
    }
    const std::unique_ptr<Engine> engine =
        OpenEngine(backend_, std::move(files), engine_options, options_.device, options_.output);
    environment_.model = engine->model_name();
    const int64_t decoder_bytes = engine->model().weights().decoder_bytes;
    environment_.loads.push_back({.precision = precision,
                                  .load_ms = engine->load_ms(),
                                  .decoder_bytes = decoder_bytes,
                                  .bytes_per_parameter = static_cast<double>(decoder_bytes) /
                                                         static_cast<double>(LinearParameters(engine->config())),
                                  .kv_bytes = engine->model().kv_cache_bytes(),
                                  .workspace_bytes = engine->model().workspace_bytes(),
                                  .devices = {}});
    ProgressBar bar("measuring " + precision, options_.output.quiet);
    int64_t done = 0;
    const int64_t total = static_cast<int64_t>(cases_.size()) * (options_.repetitions + 1);
    for (const BenchCase& test : cases_) {
      BenchResult result;
      result.test = test;
      result.precision = precision;
      result.sc = engine->sc_description();
      if (test.prompt > 0) {
        result.samples_ms = PromptSamples(*engine, test, &bar, &done, total);
      } else {
        DecodeTest decode(*engine, test, options_.sampling, options_.decode_tokens);
        result.samples_ms = DecodeSamples(decode, &bar, &done, total);
        result.fill_ms = decode.fill_ms();
      }
      result.tokens = test.prompt > 0 ? test.prompt : test.batch;
      result.floor_ms =
          test.prompt > 0 ? PromptFloor(*engine, test, environment_.device_name)
                          : DecodeFloor(*engine, test, options_.decode_tokens, environment_.read_bytes_per_s, Ranks());
      results_.push_back(result);
    }
    bar.Update(total, total);
    environment_.loads.back().devices = Used(before);
  }

  std::string Report() {
    for (BenchResult& result : results_) {
      for (const BenchResult& other : results_) {
        if (other.precision != environment_.baseline || CaseName(other.test) != CaseName(result.test)) continue;
        result.baseline_ratio = result.median_ms() / other.median_ms();
      }
    }
    std::stable_sort(results_.begin(), results_.end(), [this](const BenchResult& a, const BenchResult& b) {
      return CaseIndex(a.test) < CaseIndex(b.test);
    });
    return FormatBench(environment_, results_, options_.format);
  }

 private:
  static constexpr int64_t kWarmUpPasses = 4;  // of a long prompt

  Device device() const { return backend_->devices()[0]; }
  std::span<const RankReport> Ranks() const {
    const RankJob* job = options_.device.ranks.job;
    return job == nullptr ? std::span<const RankReport>() : job->reports();
  }

  std::vector<DeviceInfo> Infos() const {
    std::vector<DeviceInfo> infos;
    for (const Device& each : backend_->devices()) infos.push_back(backend_->info(each));
    return infos;
  }

  // What GPUs have less free than before, with what the process had taken by then.
  std::vector<BenchDevice> Used(const std::vector<DeviceInfo>& before) const {
    std::vector<BenchDevice> used;
    const std::vector<DeviceInfo> now = Infos();
    for (size_t i = 0; i < now.size(); ++i) {
      const Device& each = backend_->devices()[i];
      if (each.kind != DeviceKind::kCuda) continue;
      used.push_back({DeviceName(each), before[i].free_bytes - now[i].free_bytes + before[i].runtime_taken_bytes});
    }
    return used;
  }

  size_t CaseIndex(const BenchCase& test) const {
    return static_cast<size_t>(std::find_if(cases_.begin(), cases_.end(),
                                            [&](const BenchCase& other) { return CaseName(other) == CaseName(test); }) -
                               cases_.begin());
  }

  // The first run of each test is the warm-up.
  std::vector<double> PromptSamples(Engine& engine, const BenchCase& test, ProgressBar* bar, int64_t* done,
                                    int64_t total) const {
    std::vector<double> samples;
    for (int64_t i = 0; i <= options_.repetitions; ++i) {
      bar->Update((*done)++, total);
      BenchCase run = test;
      if (i == 0) run.prompt = std::min(run.prompt, kWarmUpPasses * engine.shape().max_rows);
      const double sample = PromptSample(engine, run);
      if (i > 0) samples.push_back(sample);
    }
    return samples;
  }

  std::vector<double> DecodeSamples(DecodeTest& decode, ProgressBar* bar, int64_t* done, int64_t total) const {
    std::vector<double> samples;
    for (int64_t i = 0; i <= options_.repetitions; ++i) {
      bar->Update((*done)++, total);
      const double sample =
          decode.Sample(i == 0 ? std::min<int64_t>(options_.decode_tokens, 4) : options_.decode_tokens);
      if (i > 0) samples.push_back(sample);
    }
    return samples;
  }

  const Options& options_;
  std::shared_ptr<Backend> backend_;
  std::vector<BenchCase> cases_;
  BenchEnvironment environment_;
  std::vector<BenchResult> results_;
};

// --speculate: tests of its own, of one precision.
ExitCode RunSpeculation(const Options& options, std::shared_ptr<Backend> backend) {
  const bool prompts_or_depths = !options.prompts.empty() || options.depths != Options().depths;
  if (prompts_or_depths || options.logprobs || options.precisions.size() > 1 || options.temperatures.size() > 1) {
    throw InvalidInput("-p, -d, --logprobs, several of --precision or --temperature: have no meaning with --speculate");
  }
  SpeculationBenchOptions bench;
  bench.model = options.model;
  if (bench.model.model.empty())
    bench.model.model = backend->name() == "cpu" ? DemoModelFolder() : "random:llama-3.1-8b";
  bench.device = options.device;
  bench.output = options.output;
  bench.arithmetic.precision = options.precisions.empty() ? "sc" : options.precisions.front();
  bench.arithmetic.sc = options.sc;
  bench.arithmetic.files = options.files;
  bench.speculation = options.speculation;
  bench.sequences = options.batches.empty() ? std::vector<int64_t>{1, 4, 8} : options.batches;
  bench.tokens = options.decode_tokens < 0 ? 128 : options.decode_tokens;
  if (bench.tokens < 2) throw InvalidInput("-n: at least 2 with --speculate");
  bench.repetitions = options.repetitions;
  bench.temperature = options.temperatures.front();
  bench.told = options.told;
  bench.format = options.output.json ? "json" : options.format;
  return RunSpeculationBench(bench, std::move(backend));
}

ExitCode Run(Options options) {
  const std::shared_ptr<Backend> backend = Open(options.device);
  const bool cpu = backend->name() == "cpu";
  if (options.speculation.speculate != "off") return RunSpeculation(options, backend);
  if (options.told) throw InvalidInput("--told: has no meaning without --speculate");
  // fp16 is the GPU's baseline; a CPU run has fp32 to compare with, and smaller defaults to end in time.
  if (options.precisions.empty()) options.precisions = {"sc", cpu ? "fp32" : "fp16"};
  if (options.batches.empty()) options.batches = {1};
  if (options.model.model.empty()) options.model.model = cpu ? "random:llama-3.2-1b" : "random:llama-3.1-8b";
  if (options.prompts.empty()) options.prompts = {cpu ? 128 : 512};
  if (options.decode_tokens < 0) options.decode_tokens = cpu ? 16 : 128;
  if (std::find(options.precisions.begin(), options.precisions.end(), "sc") == options.precisions.end() &&
      !(options.sc.empty() && options.files.empty())) {
    throw InvalidInput("--sc and its files: have no meaning without sc in --precision");
  }
  for (const std::string& precision : options.precisions) ParsePrecision(precision);
  Validate(options.sampling, 1);
  if (options.output.json) options.format = "json";

  Bench bench(options, backend);
  for (const std::string& precision : options.precisions) bench.Run(precision);
  Print(bench.Report());
  return kDone;
}

}  // namespace

CommandBody AddBench(CLI::App& command) {
  command.description("Time per token and tokens per second, precisions side by side");
  command.footer(
      "Examples:\n"
      "  stoch bench random:llama-3.2-1b -n 32\n"
      "  stoch bench --model demo --speculate ngram -b 1,4,8 -n 128\n"
      "  stoch bench --device cuda:0 --model random:llama-3.1-8b -p 512,2048 -n 128 -d 0,4096 -b 1,8 -r 5 -o json");
  auto options = std::make_shared<Options>();
  AddModelOption(command, &options->model.model,
                 "A model as for generate; default random:llama-3.2-1b on a CPU (demo with --speculate), "
                 "random:llama-3.1-8b on a GPU");
  command
      .add_option("--precision", options->precisions,
                  "List of sc, fp32, fp16; ratios are to the last; default "
                  "sc,fp16, on a CPU sc,fp32")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--sc", options->sc, "SC settings, as for generate")->allow_extra_args(false);
  AddScFileOptions(command, &options->files);
  command.add_option("-p,--prompt", options->prompts, "Prompt lengths, 0 = none; default 512, on a CPU 128")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20));
  command.add_option("-n,--decode", options->decode_tokens, "Decode steps, 0 = none; default 128, on a CPU 16")
      ->check(CLI::Range(0, 1 << 20));
  command.add_option("-d,--depth", options->depths, "Tokens in the cache before the first decode step")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20));
  command.add_option("-b,--batch", options->batches, "Sequences decoded together; default 1, with --speculate 1,4,8")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096));
  command.add_option("--temperature", options->temperatures, "Temperatures to decode at; 0 picks the likeliest token")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--top-k", options->sampling.top_k,
                     "Of the temperatures above 0: the most likely tokens, 0 = all");
  command.add_option("--top-p", options->sampling.top_p, "... the smallest set that reaches this probability");
  command.add_option("--min-p", options->sampling.min_p, "... tokens at least this times as likely as the first");
  command
      .add_option("--logprobs", options->logprobs,
                  "Every test again with log-probabilities (of prompts: of all tokens) and so many alternatives")
      ->check(CLI::Range(0, kMaxTopLogProbs));
  command.add_option("-r,--repetitions", options->repetitions, "Measured runs of every test, after a warm-up")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  command.add_option("-o,--output", options->format, "md, csv, json or jsonl")
      ->capture_default_str()
      ->check(CLI::IsMember({"md", "csv", "json", "jsonl"}));
  AddSpeculationOptions(command, &options->speculation);
  command.add_flag(
      "--told", options->told,
      "With --speculate: the answers are told, whatever the model picks, as those of random weights always are: "
      "what the prompt asks for, and a story of the demo model; with a draft model what that says, but for "
      "a share of tokens");
  AddDeviceOptions(command, &options->device);
  AddRankOptions(command, &options->device.ranks);
  AddOutputOptions(command, &options->output);
  command.get_option("--json")->excludes(command.get_option("--output"));
  return [options] { return RunOnRanks(&options->device, options->model.model, [options] { return Run(*options); }); };
}

}  // namespace stoch::cli
