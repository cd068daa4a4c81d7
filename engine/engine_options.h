// SPDX-License-Identifier: Apache-2.0
// What an Engine is opened with, and the sizes that follow from it before anything is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/grammar.h"
#include "engine/speculation/draft_source.h"
#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/decoder_options.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_model_config.h"

namespace stoch {

// "sc", "fp32", "fp16". ParsePrecision errors: InvalidInput listing them.
std::string_view PrecisionName(Precision precision);
Precision ParsePrecision(std::string_view name);

struct EngineOptions {
  Precision precision = Precision::kSc;      // kFp16 is InvalidInput on a backend without it
  ScModelConfig sc = HalvedScModelConfig();  // read for kSc only
  int64_t context = 0;                       // positions per sequence; 0 = the model's
  int64_t max_sequences = 1;                 // sequences of one pass
  int64_t kv_tokens = 0;                     // positions all sequences share; 0 = max_sequences * context
  int64_t max_pass_rows = 0;     // rows of one pass where prompts may be cut, else the context; 0 = DefaultPassRows
  int64_t min_piece_rows = 128;  // of a pass that several stages work on piece by piece
  int64_t base_rows = 0;         // of base logits on the device, for a KlComparison; planned
  // Guessed tokens that one sequence's share of a pass checks at most, and who guesses, for each sequence; 0 or empty:
  // nobody. Only where rows of a pass have the bits of single steps. Texts are the same with any (docs/speculation.md).
  int64_t draft_tokens = 0;
  DraftSourceMaker make_drafts;
  GuideMaker make_guide;                                 // of requests with a grammar; empty: they are refused
  std::optional<DecoderPlacement> placement;             // which device holds what; default: all on the backend's first
  RankLink* ranks = nullptr;                             // to the processes of placement.ranks; outlives the engine
  std::vector<std::string> notices;                      // of who chose these options, for Engine::notices()
  std::function<void(const LoadProgress&)> on_progress;  // while loading, from the calling thread
};

// A GPU is used well from some 2000 rows on: 2112 for every stripe of positions, whole tiles of 192 rows. CPUs: 512.
int64_t DefaultPassRows(DeviceKind kind, int stripes);

// The options with every default filled in: those of a CPU where no placement says otherwise.
// Errors: InvalidInput for a context below 1 or beyond max_position_embeddings, or sizes that contradict.
EngineOptions FillDefaults(const DecoderConfig& config, EngineOptions options);

// The sizes an Engine with these options has (what PlanMemory needs, before anything is loaded).
// Errors: as FillDefaults.
PassShape ShapeOf(const DecoderConfig& config, const EngineOptions& options);

// Whether results do not depend on how a prompt is cut into passes, or on which sequences share one.
bool ChunkInvariant(const EngineOptions& options);
bool BatchInvariant(const EngineOptions& options);

inline constexpr int64_t kMaxDraftTokens = 15;
// Why no pass may check guessed tokens: its rows would not have the bits of single steps. "" where one may.
std::string WhyNoDrafts(const EngineOptions& options);

}  // namespace stoch
