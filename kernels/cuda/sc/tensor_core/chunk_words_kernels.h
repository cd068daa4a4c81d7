// SPDX-License-Identifier: Apache-2.0
// What the prefill kernel is launched with for lengths of (row, chunk): in each chunk a tile of tokens takes as many
// words of an operand as the longest streams of its rows there. Rows are in an order in which those whose longest streams
// are in the same chunks share tiles: token t is row order[t].
#pragma once

#include "kernels/cuda/sc/tensor_core/prefill_kernels.h"

namespace stoch::cuda {

// A block of more words comes in two stages, the first of so many words: short ones then leave room for many stages.
inline constexpr int kChunkPartWords = 2;
inline constexpr int kChunkStageBytes =
    (4 * kChunkPartWords + 2) * kPrefillTokens * 16 + 2 * kPrefillTokens * 4 + kPrefillRows * 4;

// What of the lengths of up to so many words, one after another by their number of words, the streams of tiles are made of.
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
void LaunchChunkWordsWgmma(DeviceContext& ctx, const ScPlan& plan, const ChunkWordsArgs& args);
int64_t MaxChunkWordsClusters(DeviceContext& ctx, const ScPlan& plan);

}  // namespace stoch::cuda
