// SPDX-License-Identifier: Apache-2.0
// A draft model before it is loaded: its sizes, the memory that it takes, and whether it speaks of the same tokens.
#pragma once

#include <memory>
#include <string>

#include "engine/engine_options.h"
#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/tokenizer/tokenizer.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_model_config.h"

namespace stoch {

struct DraftFiles {
  ModelFiles files;
  Precision precision = Precision::kSc;
  ScModelConfig sc;  // read for kSc only; without settings of single layers and files, which are those of another model
};

// Checks that ids mean the same in both: one tokenizer, or none and vocabularies of one size.
// Errors: InvalidInput that names the first difference. A tokenizer is null where a model has none.
void CheckSameTokens(const ModelFiles& target, const Tokenizer* target_tokenizer, const ModelFiles& draft,
                     const Tokenizer* draft_tokenizer);

// The options of the draft model's engine: as many positions and sequences as the target's, all on one device.
EngineOptions DraftEngineOptions(const DraftFiles& draft, const EngineOptions& target);

// Bytes on the first device, next to a target with these options. Errors: as FillDefaults of either.
MemoryBytes PlanDraft(const DraftFiles& draft, const EngineOptions& target, const Backend& backend);

}  // namespace stoch
