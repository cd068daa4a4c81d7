// SPDX-License-Identifier: Apache-2.0
// The draft model of --speculate MODEL: opened and checked before anything is loaded, then loaded next to its target.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "app/common_options.h"
#include "app/options/speculation_options.h"
#include "engine/draft_model/draft_files.h"
#include "engine/engine_options.h"
#include "engine/placement.h"
#include "engine/speculation/draft_source.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::cli {

// The draft model that is named, without a look at its tokens; null where none is.
// target, engine: the model that it guesses for, and its options without defaults. sc: settings of --sc, which are the draft
// model's too where they are of no single layer.
// Errors: InvalidInput: what OpenModelFiles says of it, and a target whose passes may check no guesses.
std::shared_ptr<DraftFiles> OpenDraft(const SpeculationOptions& options, const ModelFiles& target,
                                      const EngineOptions& engine, std::span<const std::string> sc);
// Errors: InvalidInput unless the draft model has the tokens of the target.
void RequireSameTokens(const ModelFiles& target, const Tokenizer* tokenizer, const DraftFiles& draft);

// Bytes that PlaceNextTo has to leave room for; empty without a draft model. It refers to `draft`.
BytesOfOthers OthersOf(const DraftFiles* draft, const Backend& backend);

// Loads the draft model, if there is one, whose sources then are those of `engine`: placed options of its target.
// Errors: as Engine::Open.
void LoadDraft(DraftFiles* draft, std::shared_ptr<Backend> backend, const DecoderConfig& target, EngineOptions* engine);

// PlaceOn and OpenEngine with a draft model on the first device; null: none.
// Errors: as those, and InvalidInput where ranks divide the target.
DecoderPlacement PlaceWithDraft(const DeviceOptions& options, const ModelFiles& files, const Backend& backend,
                                EngineOptions* engine, const DraftFiles* draft);
std::unique_ptr<Engine> OpenWithDraft(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                      const DeviceOptions& devices, const OutputOptions& output, DraftFiles* draft);

}  // namespace stoch::cli
