// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/bench_speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "app/command.h"
#include "app/draft.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/report/speculation.h"
#include "app/version.h"
#include "engine/generate.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

constexpr std::array<const char*, 8> kNames = {"Lily", "Tom", "Anna", "Ben", "Mia", "Sam", "Sara", "Max"};

enum class Kind : uint8_t { kEdits, kStory };
constexpr std::array<std::pair<Kind, const char*>, 2> kKinds = {{{Kind::kEdits, "edits"}, {Kind::kStory, "story"}}};

// A text, told twice and begun a third time with another name; or the beginning of a story.
std::string PromptText(Kind kind, size_t sequence) {
  const char* const name = kNames[sequence % kNames.size()];
  const char* const other = kNames[(sequence + 1) % kNames.size()];
  if (kind == Kind::kStory) return fmt::format("Once upon a time there was a child named {}. One day, {}", name, name);
  const auto text = [](const char* who) {
    return fmt::format(
        "Once upon a time there was a child named {}. {} liked to play in the big park near the house. One day, {} saw "
        "a red bird in a tall tree. The bird was sad, because it could not find its nest. {} wanted to help the bird. "
        "They looked under the tree and behind the bench, and then they found the nest in the grass. The bird was very "
        "happy and sang a song.\n",
        who, who, who, who);
  };
  const std::string begun = text(other);
  return text(name) + text(name) + begun.substr(0, begun.find(". ") + 2);
}

// The same for models without a tokenizer: ids that come twice and begin again, or few that come once.
Ids PromptIds(Kind kind, size_t sequence, int64_t vocab_size) {
  const size_t length = kind == Kind::kEdits ? 96 : 24;
  const auto id = [&](size_t i) {
    return static_cast<int32_t>((i * 7919 + sequence * 104729 + 11) % static_cast<size_t>(vocab_size));
  };
  Ids ids;
  for (size_t i = 0; i < length; ++i) ids.push_back(id(i));
  if (kind == Kind::kStory) return ids;
  ids.insert(ids.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length));
  ids.insert(ids.end(), ids.begin(), ids.begin() + 8);
  return ids;
}

struct Prompts {
  const char* name;
  std::vector<Ids> ids;  // one for each sequence
  int64_t longest = 0;
};

std::vector<Prompts> MakePrompts(const Tokenizer* tokenizer, int64_t vocab_size, int64_t sequences) {
  std::vector<Prompts> all;
  for (const auto& [kind, name] : kKinds) {
    Prompts& prompts = all.emplace_back();
    prompts.name = name;
    for (size_t i = 0; i < static_cast<size_t>(sequences); ++i) {
      prompts.ids.push_back(tokenizer != nullptr ? tokenizer->Encode(PromptText(kind, i), {})
                                                 : PromptIds(kind, i, vocab_size));
      prompts.longest = std::max(prompts.longest, static_cast<int64_t>(prompts.ids.back().size()));
    }
  }
  return all;
}

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
  SpeculationResult Measure(const Prompts& prompts, int64_t sequences, ProgressBar* bar, int64_t* done, int64_t total) {
    SpeculationResult result;
    result.prompt = prompts.name;
    result.sequences = sequences;
    result.prompt_tokens = prompts.longest;
    PassTimes times;  // as in a server: kept from run to run
    std::vector<Ids> expected;
    for (int64_t i = 0; i <= options_.repetitions; ++i) {
      for (int turn = 0; turn < 2; ++turn) {
        bar->Update((*done)++, total);
        const bool guesses = (i + turn) % 2 == 1;
        const RunResult run = Run(prompts, sequences, guesses, times);
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
  GenerateRequest RequestOf(const Ids& prompt, size_t index) const {
    GenerateRequest request;
    request.prompt = prompt;
    request.max_tokens = options_.tokens;
    request.ignore_eos = true;
    request.sampling.temperature = options_.temperature;
    request.sampling.seed = index;
    return request;
  }

  RunResult Run(const Prompts& prompts, int64_t sequences, bool guesses, PassTimes& times) {
    std::vector<std::unique_ptr<Generation>> all;
    for (size_t i = 0; i < static_cast<size_t>(sequences); ++i) {
      all.push_back(std::make_unique<Generation>(engine_, RequestOf(prompts.ids[i], i)));
      if (!guesses) all.back()->DraftNothing();
      while (all.back()->prefilling()) Step({all.back().get()}, nullptr);
    }
    RunResult result;
    const Clock::time_point start = Clock::now();
    for (;; ++result.passes) {
      ThrowIfInterrupted();
      std::vector<Generation*> running;
      for (const auto& each : all) {
        if (!each->done()) running.push_back(each.get());
      }
      if (running.empty()) break;
      Step(running, &times);
    }
    result.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    for (const auto& each : all) {
      const GenerateResult& got = each->result();
      result.ids.push_back(got.ids);
      result.tokens += static_cast<int64_t>(got.ids.size()) - 1;  // the first came with the prompt
      result.drafts.passes += got.drafts.passes;
      result.drafts.drafted += got.drafts.drafted;
      result.drafts.accepted += got.drafts.accepted;
    }
    return result;
  }

  // times: null for a pass of a prompt.
  void Step(const std::vector<Generation*>& running, PassTimes* times) {
    std::vector<std::vector<DraftedToken>> drafts(running.size());
    if (times != nullptr) drafts = DraftsForPass(running, *times);
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
  const std::vector<Prompts> prompts =
      MakePrompts(tokenizer.get(), files.config.vocab_size, engine_options.max_sequences);
  int64_t longest = 0;
  for (const Prompts& each : prompts) longest = std::max(longest, each.longest);
  const int64_t context = longest + options.tokens;
  if (context > files.config.max_position_embeddings) {
    throw InvalidInput(fmt::format("-n {}: with a prompt of {} tokens beyond the model's context of {}", options.tokens,
                                   longest, files.config.max_position_embeddings));
  }
  engine_options.context = context;
  engine_options.kv_tokens = engine_options.max_sequences * RoundUpToPages(context);
  Apply(options.speculation, &engine_options);
  const std::shared_ptr<DraftFiles> draft = OpenDraft(options.speculation, files, engine_options, arithmetic.sc);
  if (draft != nullptr) RequireSameTokens(files, tokenizer.get(), *draft);
  const std::unique_ptr<Engine> engine =
      OpenWithDraft(std::move(backend), std::move(files), engine_options, options.device, options.output, draft.get());
  SpeculationBench bench(options, *engine);
  ProgressBar bar("measuring", options.output.quiet);
  const int64_t total = static_cast<int64_t>(prompts.size() * options.sequences.size()) * 2 * (options.repetitions + 1);
  int64_t done = 0;
  std::vector<SpeculationResult> results;
  for (const Prompts& each : prompts) {
    for (const int64_t sequences : options.sequences) {
      results.push_back(bench.Measure(each, sequences, &bar, &done, total));
    }
  }
  bar.Clear();
  Print(FormatSpeculation(EnvironmentOf(options, *engine), results, options.format));
  const auto same = [](const SpeculationResult& result) { return result.same_ids; };
  return std::all_of(results.begin(), results.end(), same) ? kDone : kCheckFailed;
}

}  // namespace stoch::cli
