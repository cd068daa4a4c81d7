// SPDX-License-Identifier: Apache-2.0
#include "python/src/model.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <filesystem>

#include "app/common_options.h"
#include "app/demo_model.h"
#include "app/draft.h"
#include "app/options/max_memory.h"
#include "app/output.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/logits_hash.h"
#include "engine/placement.h"
#include "kernels/base/check.h"
#include "kernels/registry.h"
#include "python/src/base/devices.h"
#include "python/src/base/errors.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

// Positions that all sequences share where nobody says how many, as in `stoch serve`.
constexpr int64_t kDefaultKvTokens = 16384;

PlacementOptions PlacementOf(const LoadOptions& options, const Backend& backend) {
  PlacementOptions placement;
  ParseSplit("split =", options.split, backend.devices().size(), &placement);
  if (options.split != "layer" && (options.device_map != "auto" || !options.device_map_json.empty())) {
    throw InvalidInput("device_map: has no meaning with split = " + options.split + ", which uses every device");
  }
  placement.max_memory = cli::ParseMaxMemory(options.max_memory);
  const std::string& map = options.device_map;
  if (!options.device_map_json.empty()) {
    placement.map_json = options.device_map_json;
  } else if (map.ends_with(".json")) {
    placement.map_json = cli::ReadWholeFile(map);
    placement.map_name = map;
  } else {
    placement.policy = map;
  }
  return placement;
}

EngineOptions EngineOptionsOf(const LoadOptions& options, const ModelFiles& files) {
  EngineOptions engine;
  cli::Apply({.precision = options.precision, .sc = options.sc, .files = options.files}, &engine);
  engine.context = options.context;
  engine.max_sequences = options.batch;
  engine.max_pass_rows = options.pass_rows;
  cli::Apply(options.speculation, &engine);
  const int64_t context = ShapeOf(files.config, engine).context;
  const int64_t whole = RoundUpToPages(context);
  engine.kv_tokens = std::min(whole * options.batch, std::max(whole, kDefaultKvTokens));
  return engine;
}

}  // namespace

LoadedModel::~LoadedModel() {
  // A child process cannot join its parent's threads nor use its driver.
  if (!WasForked()) return;
  (void)engine.release();
  (void)chat_.release();
}

const Tokenizer& LoadedModel::RequireTokenizer() const {
  if (tokenizer == nullptr) {
    throw InvalidInput(engine->model_name() + ": has no tokenizer; give ids, or tokenizer=FOLDER when it is loaded");
  }
  return *tokenizer;
}

const Chat& LoadedModel::RequireChat() {
  RequireNotForked();
  const std::lock_guard lock(chat_mutex_);
  if (chat_ == nullptr) chat_ = std::make_unique<Chat>(RequireTokenizer(), chat_settings);
  return *chat_;
}

void CheckSignals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

ModelPtr LoadModel(const LoadOptions& options, const Progress& progress) {
  RequireNotForked();
  auto model = std::make_shared<LoadedModel>();
  const cli::ModelOptions names{.model = cli::ModelPath(options.model),
                                .tokenizer = cli::ModelPath(options.tokenizer),
                                .context = options.context};
  ModelFiles files = OpenModelFiles(names.model);
  model->tokenizer = cli::OpenTokenizer(names, files);
  EngineOptions engine = EngineOptionsOf(options, files);
  if (model->tokenizer != nullptr) {
    engine.make_guide = MakerOf(std::make_shared<GrammarCompiler>(*model->tokenizer, files.config.vocab_size));
  }
  const std::shared_ptr<DraftFiles> draft = cli::OpenDraft(options.speculation, files, engine, options.sc);
  if (draft != nullptr) cli::RequireSameTokens(files, model->tokenizer.get(), *draft);
  std::string notice;
  std::shared_ptr<Backend> backend =
      OpenBackend(options.device, {.threads = options.threads, .cpu_variant = options.cpu_variant}, &notice);
  WatchForFork();
  if (!notice.empty()) model->notices.push_back(notice);
  const PlacementOptions placement = PlacementOf(options, *backend);
  engine.placement = PlaceNextTo(placement, files, *backend, &engine, cli::OthersOf(draft.get(), *backend));
  engine.on_progress = [&progress](const LoadProgress& load) {
    CheckSignals();
    if (!progress) return;
    const nb::gil_scoped_acquire gil;
    progress(load.done_bytes, load.total_bytes, "loading");
  };
  cli::LoadDraft(draft.get(), backend, files.config, &engine);
  model->engine = Engine::Open(std::move(backend), std::move(files), engine);
  for (const std::string& text : model->engine->notices()) model->notices.push_back(text);
  return model;
}

namespace {

// Runs `ids` as one sequence in as few passes as the engine takes: step(item, first row).
void RunAll(Engine& engine, std::span<const int32_t> ids, StepOutput output, const Progress& progress,
            const std::string& what, const std::function<void(const StepItem& item, size_t row)>& step) {
  const std::unique_ptr<Sequence> sequence = engine.NewSequence(static_cast<int64_t>(ids.size()));
  if (sequence == nullptr) throw InvalidInput("the KV cache has no room for " + std::to_string(ids.size()) + " tokens");
  sequence->Append(ids);
  while (sequence->pending() > 0) {
    CheckSignals();
    const auto row = static_cast<size_t>(sequence->computed());
    step({sequence.get(), engine.NextTokens(*sequence, engine.shape().max_rows), output}, row);
    if (!progress) continue;
    const nb::gil_scoped_acquire gil;
    progress(sequence->computed(), static_cast<int64_t>(ids.size()), what);
  }
}

}  // namespace

void ReadAllLogits(LoadedModel& model, std::span<const int32_t> ids, std::span<float> logits,
                   const Progress& progress) {
  Engine& engine = *model.engine;
  const auto vocab_size = static_cast<size_t>(engine.config().vocab_size);
  STOCH_CHECK(logits.size() == ids.size() * vocab_size);
  RunAll(engine, ids, StepOutput::kAll, progress, "logits", [&](const StepItem& item, size_t row) {
    const int64_t rows = engine.Step({&item, 1});
    engine.ReadLogits(0, rows, logits.data() + row * vocab_size);
  });
}

void ReadHidden(LoadedModel& model, std::span<const int32_t> ids, int layers, std::span<float> hidden,
                const Progress& progress) {
  Engine& engine = *model.engine;
  const auto hidden_size = static_cast<size_t>(engine.config().hidden_size);
  STOCH_CHECK(hidden.size() == ids.size() * hidden_size);
  RunAll(engine, ids, StepOutput::kNone, progress, "hidden", [&](const StepItem& item, size_t row) {
    const size_t rows = static_cast<size_t>(item.num_tokens);
    engine.StepWithHidden({&item, 1}, layers, hidden.subspan(row * hidden_size, rows * hidden_size));
  });
}

std::string HashLogits(LoadedModel& model, const std::vector<int32_t>& ids, int64_t new_tokens) {
  Engine& engine = *model.engine;
  if (ids.empty()) throw InvalidInput("ids is empty: at least one token is needed");
  if (new_tokens < 1) throw InvalidInput("new_tokens = " + std::to_string(new_tokens) + ": allowed is 1 or more");
  const int64_t length = static_cast<int64_t>(ids.size()) + new_tokens;
  const std::unique_ptr<Sequence> sequence = engine.NewSequence(std::min(length, engine.options().context));
  if (sequence == nullptr) throw InvalidInput("the KV cache has no room for " + std::to_string(length) + " tokens");
  sequence->Append(ids);
  LogitsHash hash;
  std::vector<float> logits(static_cast<size_t>(engine.config().vocab_size));
  int32_t next = 0;
  while (sequence->computed() + 1 < length) {
    CheckSignals();
    if (sequence->pending() == 0) sequence->Append({&next, 1});
    const int64_t tokens = engine.NextTokens(*sequence, engine.shape().max_rows);
    const StepItem item{sequence.get(), tokens, StepOutput::kAll};
    engine.Step({&item, 1});
    for (int64_t i = 0; i < tokens; ++i) {
      engine.ReadLogits(i, 1, logits.data());
      hash.Add(logits);
    }
    engine.Argmax(tokens - 1, {&next, 1});
  }
  return hash.Hex();
}

}  // namespace stoch::python
