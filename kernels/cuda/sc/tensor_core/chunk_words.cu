// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tensor_core/chunk_words.h"
#include "kernels/cuda/sc/tensor_core/chunk_words_kernels.h"
#include "kernels/plan/sc_linear_plan.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokensPerPass = kThreads / 4;  // four lanes of a warp serve the 16 dimensions of a token
constexpr int kTokensPerBlock = 512;
constexpr int kMostWords = 4;

// The number of words of each group.
struct GroupWords {
  uint8_t of[kMaxLengthGroups] = {};
};

constexpr int kChunksAtOnce = 32;
constexpr int kRowsAtOnce = 24;

// A block a tile: a column of threads a chunk.
__global__ void __launch_bounds__(kChunksAtOnce* kRowsAtOnce)
    TileWordsKernel(const RowSlots slots, const uint8_t* group_of, const GroupWords group_words, int tokens, int chunks,
                    uint8_t* words) {
  __shared__ int most[kChunksAtOnce];
  const int first = static_cast<int>(blockIdx.x) * kPrefillTokens;
  const int end = min(first + kPrefillTokens, tokens);
  const int column = static_cast<int>(threadIdx.x);
  StartNext();
  WaitForPrevious();
  for (int begin = 0; begin < chunks; begin += kChunksAtOnce) {
    const int chunk = begin + column;
    if (threadIdx.y == 0) most[column] = 1;
    __syncthreads();
    int longest = 1;
    if (chunk < chunks) {
#pragma unroll 8
      for (int row = first + static_cast<int>(threadIdx.y); row < end; row += kRowsAtOnce) {
        const int slot = slots.slots[static_cast<int64_t>(row) * chunks + chunk];
        longest = max(longest, static_cast<int>(group_words.of[group_of[slot]]));
      }
      atomicMax(&most[column], longest);
    }
    __syncthreads();
    if (threadIdx.y == 0 && chunk < chunks) {
      words[static_cast<int64_t>(blockIdx.x) * chunks + chunk] = static_cast<uint8_t>(most[column]);
    }
  }
}

// The bits of word `word` of a stream that are inside stoc_len.
__device__ uint32_t ValidBits(int word, int stoc_len) {
  const int bits = stoc_len - 32 * word;
  return bits >= 32 ? ~0u : bits <= 0 ? 0u : (1u << bits) - 1;
}

__device__ __forceinline__ uint4 LoadStream(const WordTables& tables, const uint32_t* streams, int levels, int dim,
                                            int level) {
  if (streams == nullptr) return make_uint4(0, 0, 0, 0);  // length 0
  const uint32_t* stream =
      streams + (static_cast<int64_t>(dim & (tables.masks - 1)) * levels + level) * tables.stream_words;
  if (tables.stream_words == 4) return __ldg(reinterpret_cast<const uint4*>(stream));
  const uint2 two = __ldg(reinterpret_cast<const uint2*>(stream));
  return make_uint4(two.x, two.y, 0, 0);
}

// As ExpandStreamsKernel (streams.cu), with as many words as the tile has in the chunk.
__global__ void __launch_bounds__(kThreads)
    ExpandChunkWordsKernel(const __grid_constant__ ChunkWords rows, ScActivationView a, ScStreams out, int* flags,
                           int flag_count) {
  const int dim_block = static_cast<int>(blockIdx.x);
  const int chunk = dim_block / out.blocks_per_chunk;
  const int block_in_chunk = dim_block % out.blocks_per_chunk;
  StartNext();
  WaitForPrevious();
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < flag_count; i += kThreads) flags[i] = 0;
  }
  const int lane = static_cast<int>(threadIdx.x) & 3;
  const int first_token = static_cast<int>(blockIdx.y) * kTokensPerBlock;
  const int end_token = min(first_token + kTokensPerBlock, out.tokens_padded());
  for (int token = first_token + static_cast<int>(threadIdx.x) / 4; token < end_token; token += kTokensPerPass) {
    const bool used = token < out.tokens;
    const int tile = token / out.tile_tokens;
    const int words = rows.words[tile * out.chunks + chunk];
    const WordTables& tables = rows.of[words - 1];
    uint32_t codes = 0;
    StreamTable own;
    if (used) {
      codes = *reinterpret_cast<const uint32_t*>(a.codes + token * a.dims.padded + dim_block * 16 + lane * 4);
      own = tables.streams[rows.slots.slots[token * rows.slots.per_row + chunk]];
    }
    auto* block = reinterpret_cast<uint32_t*>(out.data + out.block_offset(tile, dim_block, 0));
    const int column = token % out.tile_tokens * 4 + lane;
    uint32_t signs = 0, ones = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t code = (codes >> (8 * j)) & 0xff;
      const uint32_t negative = code >> 7;
      const uint4 entry = LoadStream(tables, own.streams, rows.levels, block_in_chunk * 16 + lane * 4 + j,
                                     static_cast<int>(code & 0x7f));
      const uint32_t w[kMostWords] = {entry.x, entry.y, entry.z, entry.w};
      uint32_t count = 0;
#pragma unroll
      for (int k = 0; k < kMostWords; ++k) {
        if (k >= words) break;
        const uint32_t word = (w[k] ^ (0 - negative)) & ValidBits(k, tables.stoc_len);
        count += static_cast<uint32_t>(__popc(word));
        block[(j * words + k) * out.tile_tokens * 4 + column] = word;
      }
      signs |= negative << (8 * j);
      ones |= ((negative - count) & 0xff) << (8 * j);
    }
    block[4 * words * out.tile_tokens * 4 + column] = signs;
    block[(4 * words + 1) * out.tile_tokens * 4 + column] = ones;
    if (lane != 0 || block_in_chunk != 0) continue;
    const int64_t at = static_cast<int64_t>(chunk) * out.tokens_padded() + token;
    out.scales[at] = used ? a.scales[static_cast<int64_t>(chunk) * a.tokens + token] : 0.0f;
    out.gains[at] = own.gain;
  }
}

// Traits of streams of four words, whatever the longest length.
ScTraits FourWords(ScTraits longest) {
  longest.stoc_len = 32 * kMostWords;
  longest.direct_ranks = true;
  return longest;
}

// Words of tiles and chunks, which blocks keep behind their stages.
int64_t WordCount(int64_t tokens, int64_t chunks) { return (tokens + kPrefillTokens - 1) / kPrefillTokens * chunks; }

int WordsOf(const LengthGroup& group) { return (group.order->config.stoc_len + 31) / 32; }

// Stages that fit in front of so many words.
int StagesOf(const GpuTraits& gpu, int64_t words) {
  return static_cast<int>(
      std::clamp<int64_t>((gpu.max_shared_bytes - kRingHeaderBytes - words) / kChunkStageBytes, 0, kPrefillMaxStages));
}

// The tables of streams, and the words of each group.
void SetTables(DeviceContext& ctx, const CallLengths& lengths, ChunkWords* rows, GroupWords* group_words) {
  for (size_t i = 0; i < lengths.groups.size(); ++i) {
    const LengthGroup& group = lengths.groups[i];
    const ScTables& tables = ctx.tables.Get(*group.order);
    const int words = WordsOf(group);
    group_words->of[i] = static_cast<uint8_t>(words);
    rows->of[words - 1] = {group.streams, tables.masks, tables.stoc_len, tables.stream_words};
    rows->levels = tables.levels;
  }
}

}  // namespace

bool CanChunkWords(DeviceContext& ctx, const CallLengths& lengths, int64_t tokens) {
  for (const LengthGroup& group : lengths.groups) {
    if (!ctx.tables.Traits(*group.order).direct_ranks) return false;
  }
  return !lengths.groups.empty() &&
         CanPrefillWgmma(ctx.traits, FourWords(ctx.tables.Traits(*lengths.groups.back().order)), true) &&
         StagesOf(ctx.traits, WordCount(tokens, lengths.slots.per_row)) >= 2;
}

void LaunchScChunkWords(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                        const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1);
  STOCH_CHECK(lengths.group_of != nullptr && lengths.slots.per_row == a.dims.chunks);
  Scratch scratch(ctx.workspace);
  ChunkWordsArgs args;
  ChunkWords rows;
  GroupWords group_words;
  SetTables(ctx, lengths, &rows, &group_words);
  rows.slots = lengths.slots;
  int64_t out_features[kMaxScTasks] = {};
  int supers = 0;
  for (int i = 0; i < count; ++i) {
    out_features[i] = tasks[i].weight.rows;
    args.tasks[i] = MakeKernelTask(tasks[i], supers);
    supers += static_cast<int>((tasks[i].weight.rows + kSuperRows - 1) / kSuperRows);
  }
  args.task_count = count;
  const ScTraits four = FourWords(ctx.tables.Traits(*lengths.groups.back().order));
  ScPlan plan = PlanScPrefill(
      ctx.traits, four, {a.tokens, a.dims.dims, std::span(out_features).first(static_cast<size_t>(count))}, true, true);
  static_cast<StreamShape&>(args.streams) = MakeStreamShape(a.dims, a.tokens, kPrefillTokens, four.stoc_len);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  args.streams.scales = scratch.Take<float>(args.streams.scale_count());
  args.streams.gains = scratch.Take<float>(args.streams.scale_count());
  const int chunks = args.streams.chunks;
  const int64_t count_of_words = WordCount(a.tokens, chunks);
  auto* const words = scratch.Take<uint8_t>(count_of_words);
  plan.stages = StagesOf(ctx.traits, count_of_words);
  plan.shared_bytes = kRingHeaderBytes + plan.stages * kChunkStageBytes + count_of_words;
  args.words = rows.words = words;
  const auto clusters = static_cast<int>(MaxChunkWordsClusters(ctx, plan));
  STOCH_CHECK(clusters >= 1);
  // The kernel's tiles all have the full width.
  args.schedule = MakePrefillSchedule(clusters, supers, args.streams.tokens_padded(), chunks);
  const int flags = args.schedule.rest() * kPrefillFlags;
  args.partial = scratch.Take<float>(static_cast<int64_t>(args.schedule.rest()) * kSuperRows * kPrefillTokens);
  args.flags = scratch.Take<int>(flags);
  LaunchOverlapped(ctx, TileWordsKernel, dim3(static_cast<unsigned>(args.streams.token_tiles)),
                   dim3(kChunksAtOnce, kRowsAtOnce), 0, lengths.slots, lengths.group_of, group_words,
                   args.streams.tokens, chunks, words);
  const dim3 grid(static_cast<unsigned>(args.streams.dim_blocks),
                  static_cast<unsigned>((args.streams.tokens_padded() + kTokensPerBlock - 1) / kTokensPerBlock));
  LaunchOverlapped(ctx, ExpandChunkWordsKernel, grid, dim3(kThreads), 0, rows, a, args.streams, args.flags, flags);
  LaunchChunkWordsWgmma(ctx, plan, args);
}

int64_t ChunkWordsScratchBytes(const GpuTraits& gpu, const ScTraits& longest, const ScShape& shape) {
  constexpr int64_t kAlignment = 256;
  const ScTraits four = FourWords(longest);
  if (!CanPrefillWgmma(gpu, four, true)) return 0;
  const int64_t tiles = (shape.tokens + kPrefillTokens - 1) / kPrefillTokens;
  const int64_t words = tiles * MakeScDims(shape.in_features, longest.chunk_d).chunks + kAlignment;
  return PlanScPrefill(gpu, four, shape, true, true).launch_bytes + words;
}

}  // namespace stoch::cuda
