// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_options.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "kernels/base/error.h"
#include "loader/range_text.h"

namespace stoch {
namespace {

constexpr std::array<std::pair<std::string_view, Precision>, 3> kPrecisions = {
    {{"sc", Precision::kSc}, {"fp32", Precision::kFp32}, {"fp16", Precision::kFp16}}};

constexpr int64_t kLogitsBytes = int64_t{64} << 20;  // of one block of logits rows
// Rows that an exact linear computes at a time on a GPU: with 130 of a block, the LM head took twice as long as with
// 128.
constexpr int64_t kLogitsTile = 128;
// Rows of a pass that checks guesses of several sequences. On an H200 64 rows of an 8B model take 3.6 times as long as 8, and
// bring 8 tokens for each of 8 sequences where all guesses are right; 128 rows take twice as long again.
constexpr int64_t kRowsWithDrafts = 64;

// Guesses that a pass checks: of one sequence all that it may have; of several as many as make kRowsWithDrafts rows.
int64_t DraftsOfPass(const EngineOptions& options) {
  if (options.draft_tokens == 0) return 0;
  const int64_t rows_of_one = 1 + options.draft_tokens;
  return std::max(rows_of_one, std::min(options.max_sequences * rows_of_one, kRowsWithDrafts)) - 1;
}

}  // namespace

std::string_view PrecisionName(Precision precision) {
  for (const auto& [name, entry] : kPrecisions) {
    if (entry == precision) return name;
  }
  return "?";
}

Precision ParsePrecision(std::string_view name) {
  for (const auto& [known, precision] : kPrecisions) {
    if (known == name) return precision;
  }
  throw InvalidInput("precision = '" + std::string(name) + "': allowed is sc, fp32, fp16");
}

bool ChunkInvariant(const EngineOptions& options) {
  return options.precision != Precision::kSc || IsChunkInvariant(options.sc);
}

bool BatchInvariant(const EngineOptions& options) {
  return options.precision != Precision::kSc || IsBatchInvariant(options.sc);
}

std::string WhyNoDrafts(const EngineOptions& options) {
  if (options.precision == Precision::kFp16) return "fp16 has no fixed order of sums";
  return options.precision == Precision::kSc ? WhyPassesCouple(options.sc) : "";
}

int64_t DefaultPassRows(DeviceKind kind, int stripes) {
  constexpr int64_t kGpuRows = 11 * int64_t{192};  // whole tiles of the linears on wgmma
  return kind == DeviceKind::kCpu ? 512 : kGpuRows * stripes;
}

EngineOptions FillDefaults(const DecoderConfig& config, EngineOptions options) {
  const auto range = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    throw InvalidInput(std::string(name) + " = " + std::to_string(value) + ": allowed is " + RangeText(low, high));
  };
  if (options.context == 0) options.context = config.max_position_embeddings;
  if (options.context > config.max_position_embeddings && config.rope_scaling &&
      std::holds_alternative<LongRopeScaling>(*config.rope_scaling)) {
    throw InvalidInput("context = " + std::to_string(options.context) + ": allowed is 1.." +
                       std::to_string(config.max_position_embeddings) +
                       "; rope_type \"longrope\" turns every position of a longer sequence by other factors, and what "
                       "the cache holds would not be what it was");
  }
  range("context", options.context, 1, config.max_position_embeddings);
  range("max_sequences", options.max_sequences, 1, 4096);
  if (options.max_pass_rows == 0) {
    const bool placed = options.placement.has_value();
    const size_t stripes = placed ? std::max<size_t>(1, options.placement->stripes.size()) : 1;
    options.max_pass_rows =
        DefaultPassRows(placed ? options.placement->embedding.kind : DeviceKind::kCpu, static_cast<int>(stripes));
  }
  range("max_pass_rows", options.max_pass_rows, 1, 65536);
  range("min_piece_rows", options.min_piece_rows, 1, 65536);
  range("base_rows", options.base_rows, 0, int64_t{1} << 31);
  if (options.kv_tokens == 0) options.kv_tokens = RoundUpToPages(options.context) * options.max_sequences;
  range("kv_tokens", options.kv_tokens, 1, int64_t{1} << 36);
  if (options.precision == Precision::kSc) Validate(options.sc);
  range("draft_tokens", options.draft_tokens, 0, kMaxDraftTokens);
  if (const std::string why = WhyNoDrafts(options); options.draft_tokens > 0 && !why.empty()) {
    throw InvalidInput("draft_tokens = " + std::to_string(options.draft_tokens) +
                       ": rows of a pass would not have the bits of single steps (" + why + "); allowed is 0");
  }
  return options;
}

PassShape ShapeOf(const DecoderConfig& config, const EngineOptions& options) {
  const EngineOptions filled = FillDefaults(config, options);
  PassShape shape;
  shape.context = filled.context;
  shape.kv_tokens = filled.kv_tokens;
  const int64_t prompt_rows =
      ChunkInvariant(filled) ? std::min(filled.max_pass_rows, filled.kv_tokens) : filled.context;
  shape.max_sequences = filled.max_sequences;
  shape.draft_tokens = DraftsOfPass(filled);
  shape.max_rows = std::max(prompt_rows, MaxPicks(shape));
  int64_t block = std::max<int64_t>(1, kLogitsBytes / (config.vocab_size * 4));
  if (block > kLogitsTile) block -= block % kLogitsTile;
  shape.max_logit_rows = std::max(std::min(shape.max_rows, block), MaxPicks(shape));
  if (filled.placement) shape.lanes = LanesOf(*filled.placement);
  shape.base_rows = filled.base_rows;
  return shape;
}

}  // namespace stoch
