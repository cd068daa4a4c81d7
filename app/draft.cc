// SPDX-License-Identifier: Apache-2.0
#include "app/draft.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <utility>

#include "app/demo_model.h"
#include "app/interrupt.h"
#include "app/placement_options.h"
#include "app/progress.h"
#include "app/run_on_ranks.h"
#include "engine/draft_model/draft_model.h"
#include "kernels/base/error.h"
#include "models/sc_model_config.h"
#include "research/sc_files.h"

namespace stoch::cli {

std::shared_ptr<DraftFiles> OpenDraft(const SpeculationOptions& options, const ModelFiles& target,
                                      const EngineOptions& engine, std::span<const std::string> sc) {
  if (!options.names_model()) return nullptr;
  (void)FillDefaults(target.config, engine);  // whether guesses may be checked
  auto draft = std::make_shared<DraftFiles>();
  try {
    draft->files = OpenModelFiles(ModelPath(options.speculate));
  } catch (const InvalidInput& error) {
    throw InvalidInput("speculate = '" + options.speculate + "': allowed is ngram, off or a model: " + error.what());
  }
  draft->precision = engine.precision;
  if (draft->precision != Precision::kSc) return draft;
  draft->sc = ParseScModelConfig(sc);
  draft->sc.layers.clear();
  (void)ReadScFiles({}, &draft->sc);  // tables that settings name
  return draft;
}

void RequireSameTokens(const ModelFiles& target, const Tokenizer* tokenizer, const DraftFiles& draft) {
  const std::filesystem::path& folder = draft.files.folder;
  const std::unique_ptr<Tokenizer> own = folder.empty() ? nullptr : LoadTokenizer(folder);
  CheckSameTokens(target, tokenizer, draft.files, own.get());
}

BytesOfOthers OthersOf(const DraftFiles* draft, const Backend& backend) {
  if (draft == nullptr) return {};
  return [draft, &backend](const EngineOptions& engine) { return PlanDraft(*draft, engine, backend); };
}

void LoadDraft(DraftFiles* draft, std::shared_ptr<Backend> backend, const DecoderConfig& target,
               EngineOptions* engine) {
  if (draft == nullptr) return;
  const auto model = DraftModel::Open(std::move(backend), std::move(*draft), target, *engine);
  engine->make_drafts = [model] { return model->NewSource(); };
}

DecoderPlacement PlaceWithDraft(const DeviceOptions& options, const ModelFiles& files, const Backend& backend,
                                EngineOptions* engine, const DraftFiles* draft) {
  if (options.pass_rows != 0) engine->max_pass_rows = options.pass_rows;
  return PlaceNextTo(PlacementFrom(options, backend), files, backend, engine, OthersOf(draft, backend));
}

DecoderPlacement PlaceOn(const DeviceOptions& options, const ModelFiles& files, const Backend& backend,
                         EngineOptions* engine) {
  return PlaceWithDraft(options, files, backend, engine, nullptr);
}

std::unique_ptr<Engine> OpenWithDraft(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                      const DeviceOptions& devices, const OutputOptions& output, DraftFiles* draft) {
  const bool on_ranks = devices.ranks.job != nullptr;
  if (on_ranks && draft != nullptr) {
    throw InvalidInput("--ranks mpi: has no draft model; allowed for --speculate is ngram, off");
  }
  ProgressBar bar("loading", output.quiet);
  ProgressLog log("loading on all ranks", output.quiet || !on_ranks);
  options.on_progress = [&bar, &log](const LoadProgress& progress) {
    ThrowIfInterrupted();
    bar.Update(progress.done_bytes, progress.total_bytes);
    log.Update(progress.done_bytes, progress.total_bytes);
  };
  std::unique_ptr<Engine> engine;
  if (on_ranks) {
    engine = OpenOnRanks(std::move(backend), std::move(files), std::move(options), devices);
  } else {
    options.placement = PlaceWithDraft(devices, files, *backend, &options, draft);
    LoadDraft(draft, backend, files.config, &options);
    engine = Engine::Open(std::move(backend), std::move(files), options);
  }
  bar.Clear();
  if (!output.quiet) {
    for (const std::string& notice : engine->notices()) spdlog::info(notice);
  }
  return engine;
}

std::unique_ptr<Engine> OpenEngine(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                   const DeviceOptions& devices, const OutputOptions& output) {
  return OpenWithDraft(std::move(backend), std::move(files), std::move(options), devices, output, nullptr);
}

}  // namespace stoch::cli
