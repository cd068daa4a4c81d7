// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel for stream lengths of (row, chunk). In each chunk, a tile of tokens takes as many
// 32-bit words of streams as its longest stream there, 1 to 4. Rows are sorted (chunk_words.h): token t is row
// order[t].
#pragma once

#include "kernels/cuda/sc/hopper/prefill_kernels.h"
#include "kernels/plan/linear/mixed.h"

namespace stoch::cuda {

// Words of a stream in one stage, at most. Streams of more words take two stages, so that stages are small and the ring
// has many.
inline constexpr int kChunkPartWords = 2;
static_assert(kChunkStageBytes ==
              (4 * kChunkPartWords + 2) * kPrefillTokens * 16 + 2 * kPrefillTokens * 4 + kPrefillRows * 4);

// The stream tables of one group of lengths (LengthGroup), for tiles that take as many words in a chunk.
struct WordTables {
  const StreamTable* streams = nullptr;  // [slots] streams of each length, device memory
  int masks = 1;                         // distinct masks of `streams`, a power of two
  int stoc_len = 0;                      // cycles of the longest stream of the group
  int stream_words = 0;                  // words from one stream to the next in a table: 2 or 4
};
// How to expand the activations of a call to streams.
struct ChunkWords {
  WordTables of[4];                // stream tables by the number of words of a tile in a chunk, minus 1
  const uint8_t* words = nullptr;  // [token tiles][chunks] words of a tile in a chunk, 1 to 4
  const int32_t* order = nullptr;  // [tokens] row of each token
  RowSlots slots;                  // slot of each (row, chunk)
  int levels = 128;
};

// Arguments of the prefill kernel. Ranks of weights are those of the formula DirectRanks; scales and gains of tokens
// are in scaled_gains, not in `streams`.
struct ChunkWordsArgs : PrefillArgs {
  const float2* scaled_gains = nullptr;  // [chunks][tokens_padded()] {scale, 0 for padding tokens; gain}
  const uint8_t* words = nullptr;        // [token tiles][chunks] words of a tile in a chunk, 1 to 4
  const int32_t* order = nullptr;        // [tokens] row of each token
};

// Launches the prefill kernel over tiles whose number of words differs from chunk to chunk.
// Requires: args.streams of 4 words, one half; args.schedule of at most MaxChunkWordsClusters clusters.
void LaunchChunkWordsWgmma(DeviceContext& ctx, const LinearPlan& plan, const ChunkWordsArgs& args);
// The number of clusters of the kernel that the GPU runs at once.
int64_t MaxChunkWordsClusters(DeviceContext& ctx, const LinearPlan& plan);

}  // namespace stoch::cuda
