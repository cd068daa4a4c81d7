// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/bench_speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "app/command.h"
#include "app/demo_model.h"
#include "app/draft.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/report/speculation.h"
#include "app/version.h"
#include "engine/draft_model/draft_files.h"
#include "engine/generate.h"
#include "engine/speculation/pass_drafts.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "tools/stoch/speculation_texts.h"
#include "tools/stoch/told_sequence.h"

namespace stoch::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

// What one run of all sequences took and brought.
struct RunResult {
  double ms = 0;  // of all passes after the prompts
  int64_t passes = 0;
  int64_t tokens = 0;
  std::vector<Ids> ids;
  DraftCounts drafts;
};

class SpeculationBench {
 public:
  SpeculationBench(const SpeculationBenchOptions& options, Engine& engine) : options_(options), engine_(engine) {}

  // Repetitions without and with guesses in turns, which go first by turns too; the first of each is the warm-up.
  SpeculationResult Measure(const BenchText& text, int64_t sequences, ProgressBar* bar, int64_t* done, int64_t total) {
    SpeculationResult result;
    result.prompt = text.name;
    result.sequences = sequences;
    result.prompt_tokens = text.longest_prompt();
    PassTimes times;  // as in a server: kept from run to run
    std::vector<Ids> expected;
    for (int64_t i = 0; i <= options_.repetitions; ++i) {
      for (int turn = 0; turn < 2; ++turn) {
        bar->Update((*done)++, total);
        const bool guesses = (i + turn) % 2 == 1;
        const RunResult run = Run(text, sequences, guesses, times);
        if (expected.empty()) expected = run.ids;
        result.same_ids = result.same_ids && run.ids == expected;
        (guesses ? result.with_passes : result.passes) = run.passes;
        if (guesses) result.drafts = run.drafts;
        result.tokens = run.tokens;
        if (i > 0) (guesses ? result.with_samples_ms : result.samples_ms).push_back(run.ms);
      }
    }
    return result;
  }

 private:
  SamplingOptions SamplingOf(size_t index) const {
    SamplingOptions sampling;
    sampling.temperature = options_.temperature;
    sampling.seed = index;
    return sampling;
  }

  std::unique_ptr<Generation> NewGeneration(const BenchText& text, size_t index) {
    GenerateRequest request;
    request.prompt = text.prompts[index];
    request.max_tokens = options_.tokens;
    request.ignore_eos = true;
    request.sampling = SamplingOf(index);
    return std::make_unique<Generation>(engine_, request);
  }

  RunResult Run(const BenchText& text, int64_t sequences, bool guesses, PassTimes& times) {
    const auto count = static_cast<size_t>(sequences);
    if (text.answers.empty()) {
      std::vector<std::unique_ptr<Generation>> all;
      for (size_t i = 0; i < count; ++i) all.push_back(NewGeneration(text, i));
      return RunAll(all, guesses, times);
    }
    std::vector<std::unique_ptr<ToldSequence>> all;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(std::make_unique<ToldSequence>(engine_, text.prompts[i], text.answers[i], SamplingOf(i)));
    }
    return RunAll(all, guesses, times);
  }

  // Prompts, then the time of all passes after them.
  template <typename Text>
  RunResult RunAll(const std::vector<std::unique_ptr<Text>>& all, bool guesses, PassTimes& times) {
    for (const auto& each : all) {
      if (!guesses) each->DraftNothing();
      while (each->prefilling()) Step(std::vector<Text*>{each.get()}, nullptr);
    }
    RunResult result;
    const Clock::time_point start = Clock::now();
    for (;; ++result.passes) {
      ThrowIfInterrupted();
      std::vector<Text*> running;
      for (const auto& each : all) {
        if (!each->done()) running.push_back(each.get());
      }
      if (running.empty()) break;
      Step(running, &times);
    }
    result.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    for (const auto& each : all) Add(*each, &result);
    return result;
  }

  static void Add(const Generation& each, RunResult* result) { Add(each.result().ids, each.result().drafts, result); }
  static void Add(const ToldSequence& each, RunResult* result) { Add(each.ids(), each.drafts(), result); }
  static void Add(std::span<const int32_t> ids, const DraftCounts& drafts, RunResult* result) {
    result->ids.emplace_back(ids.begin(), ids.end());
    result->tokens += static_cast<int64_t>(ids.size()) - 1;  // the first came with the prompt
    result->drafts.passes += drafts.passes;
    result->drafts.drafted += drafts.drafted;
    result->drafts.accepted += drafts.accepted;
  }

  // times: null for a pass of a prompt.
  template <typename Text>
  void Step(const std::vector<Text*>& running, PassTimes* times) {
    std::vector<std::vector<DraftedToken>> drafts(running.size());
    if (times != nullptr) {
      std::vector<DraftTurn> turns;
      for (Text* each : running) turns.push_back(each->Turn());
      drafts = DraftsForTurns(turns, MaxPicks(engine_.shape()), *times);
    }
    std::vector<StepItem> items;
    int64_t rows = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      items.push_back(running[i]->Next(engine_.shape().max_rows - rows, drafts[i]));
      rows += items.back().num_tokens;
    }
    const Clock::time_point start = Clock::now();
    engine_.Step(items);
    if (times != nullptr) times->Add(rows, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    int64_t row = 0;
    for (size_t i = 0; i < running.size(); ++i) row += running[i]->Accept(items[i], row);
  }

  const SpeculationBenchOptions& options_;
  Engine& engine_;
};

// Random weights give no answer that says anything about guesses.
bool IsTold(const SpeculationBenchOptions& options, const Tokenizer* tokenizer) {
  return options.told || tokenizer == nullptr;
}

std::vector<BenchText> TextsOf(const SpeculationBenchOptions& options, const ModelFiles& files,
                               const Tokenizer* tokenizer, const EngineOptions& engine,
                               const std::shared_ptr<Backend>& backend) {
  const int64_t sequences = engine.max_sequences;
  if (!IsTold(options, tokenizer)) return PromptTexts(*tokenizer, sequences);
  EngineOptions with_room = engine;
  with_room.context = kGuessedPromptTokens + options.tokens;
  if (const auto draft = OpenDraft(options.speculation, files, with_room, options.arithmetic.sc); draft != nullptr) {
    RequireSameTokens(files, tokenizer, *draft);
    const EngineOptions draft_options = DraftEngineOptions(*draft, with_room);
    return GuessedTexts(*Engine::Open(backend, std::move(draft->files), draft_options), sequences, options.tokens);
  }
  const std::string folder = DemoModelFolder();
  EngineOptions alone;
  alone.precision = Precision::kSc;
  const auto demo = Engine::Open(backend, OpenModelFiles(folder), alone);
  return ToldTexts(*demo, *LoadTokenizer(folder), files.config.vocab_size, sequences, options.tokens);
}

SpeculationEnvironment EnvironmentOf(const SpeculationBenchOptions& options, Engine& engine) {
  SpeculationEnvironment environment;
  environment.model = engine.model_name();
  for (const Device& each : engine.backend().devices()) {
    environment.device += (environment.device.empty() ? "" : ",") + DeviceName(each);
  }
  environment.device_name = engine.backend().info(engine.backend().devices().front()).name;
  environment.commit = Commit();
  environment.precision = PrecisionName(engine.options().precision);
  environment.sc = engine.sc_description();
  environment.speculate = options.speculation.speculate;
  environment.draft_tokens = options.speculation.draft_tokens;
  environment.temperature = options.temperature;
  return environment;
}

}  // namespace

ExitCode RunSpeculationBench(const SpeculationBenchOptions& options, std::shared_ptr<Backend> backend) {
  STOCH_CHECK(!options.sequences.empty());
  EngineOptions engine_options;
  ArithmeticOptions arithmetic = options.arithmetic;
  arithmetic.own_lengths = true;
  Apply(arithmetic, &engine_options);
  engine_options.max_sequences = *std::max_element(options.sequences.begin(), options.sequences.end());
  ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  Apply(options.speculation, &engine_options);
  const std::vector<BenchText> texts = TextsOf(options, files, tokenizer.get(), engine_options, backend);
  int64_t longest = 0;
  for (const BenchText& each : texts) longest = std::max(longest, each.longest_prompt());
  const int64_t context = longest + options.tokens;
  if (context > files.config.max_position_embeddings) {
    throw InvalidInput(fmt::format("-n {}: with a prompt of {} tokens beyond the model's context of {}", options.tokens,
                                   longest, files.config.max_position_embeddings));
  }
  engine_options.context = context;
  engine_options.kv_tokens = engine_options.max_sequences * RoundUpToPages(context);
  const std::shared_ptr<DraftFiles> draft = OpenDraft(options.speculation, files, engine_options, arithmetic.sc);
  if (draft != nullptr) RequireSameTokens(files, tokenizer.get(), *draft);
  const std::unique_ptr<Engine> engine =
      OpenWithDraft(std::move(backend), std::move(files), engine_options, options.device, options.output, draft.get());
  SpeculationBench bench(options, *engine);
  ProgressBar bar("measuring", options.output.quiet);
  const int64_t total = static_cast<int64_t>(texts.size() * options.sequences.size()) * 2 * (options.repetitions + 1);
  int64_t done = 0;
  std::vector<SpeculationResult> results;
  for (const BenchText& each : texts) {
    for (const int64_t sequences : options.sequences) {
      results.push_back(bench.Measure(each, sequences, &bar, &done, total));
    }
  }
  bar.Clear();
  SpeculationEnvironment environment = EnvironmentOf(options, *engine);
  environment.told = IsTold(options, tokenizer.get());
  Print(FormatSpeculation(environment, results, options.format));
  const auto same = [](const SpeculationResult& result) { return result.same_ids; };
  return std::all_of(results.begin(), results.end(), same) ? kDone : kCheckFailed;
}

}  // namespace stoch::cli
