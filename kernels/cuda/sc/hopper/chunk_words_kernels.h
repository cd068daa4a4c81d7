// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel for lengths of (row, chunk): in each chunk a tile of tokens takes as many
// words of an operand as the longest streams of its rows there. Rows are in an order in which those whose longest streams
// are in the same chunks share tiles: token t is row order[t].
#pragma once

#include "kernels/cuda/sc/hopper/prefill_kernels.h"
#include "kernels/plan/linear/mixed.h"

namespace stoch::cuda {

// A block of more words comes in two stages, the first of so many words: short ones then leave room for many stages.
inline constexpr int kChunkPartWords = 2;
static_assert(kChunkStageBytes ==
              (4 * kChunkPartWords + 2) * kPrefillTokens * 16 + 2 * kPrefillTokens * 4 + kPrefillRows * 4);

// Sources of the streams of tiles whose longest length takes so many words.
struct WordTables {
  const StreamTable* streams = nullptr;  // [slots]: LengthGroup::streams
  int masks = 1;                         // of LengthGroup::order
  int stoc_len = 0;
  int stream_words = 0;  // of a stream
};
struct ChunkWords {
  WordTables of[4];                // by words - 1
  const uint8_t* words = nullptr;  // [token tiles][chunks], 1 to 4
  const int32_t* order = nullptr;  // [tokens]
  RowSlots slots;
  int levels = 128;
};

// Ranks are direct. Scales and gains are in `scaled_gains`, not in `streams`.
struct ChunkWordsArgs : PrefillArgs {
  const float2* scaled_gains = nullptr;  // [chunks][tokens_padded()]: scale, or 0 for padding tokens, and gain
  const uint8_t* words = nullptr;
  const int32_t* order = nullptr;
};

// The kernel of LaunchPrefillWgmma over tiles whose chunks have words of their own.
// Requires: streams of 4 words, one half.
void LaunchChunkWordsWgmma(DeviceContext& ctx, const LinearPlan& plan, const ChunkWordsArgs& args);
int64_t MaxChunkWordsClusters(DeviceContext& ctx, const LinearPlan& plan);

}  // namespace stoch::cuda
