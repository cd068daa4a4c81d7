// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/hopper/chunk_words.h"
#include "kernels/cuda/sc/hopper/chunk_words_kernels.h"
#include "kernels/cuda/sc/tensor_core/streams.cuh"
#include "kernels/plan/linear/mixed.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokensPerPass = kThreads / 4;  // four lanes of a warp serve the 16 dimensions of a token
constexpr int kTokensPerBlock = 512;          // tokens of a block of ExpandChunkWordsKernel
constexpr int kMostWords = 4;                 // words of a stream, at most

// The number of 32-bit words of a stream in each group of lengths.
struct GroupWords {
  uint8_t of[kMaxLengthGroups] = {};  // [groups] words of a stream, 1 to 4
};

// The number of words of each (row, chunk), computed from its slot.
struct RowWords {
  RowSlots slots;                     // slot of each (row, chunk)
  const uint8_t* group_of = nullptr;  // [slots] group of each slot
  GroupWords groups;
  int rows = 0;
  int chunks = 0;
  uint8_t* of = nullptr;  // [rows][chunks] output: number of words
};

// Writes words.of, and the sort key of each row: its largest number of words, and in the low 24 bits the first chunk
// with that number. One warp per row.
__global__ void __launch_bounds__(kThreads)
    RowKeysKernel(const __grid_constant__ RowWords words, uint32_t* __restrict__ keys) {
  constexpr uint32_t kMostChunks = 1 << 24;
  const int row = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) / kWarp;
  StartNext();
  WaitForPrevious();
  if (row >= words.rows) return;
  uint32_t most = 0;
  for (int chunk = static_cast<int>(threadIdx.x) % kWarp; chunk < words.chunks; chunk += kWarp) {
    const int64_t at = static_cast<int64_t>(row) * words.chunks + chunk;
    const uint32_t there = words.groups.of[words.group_of[words.slots.slots[at]]];
    words.of[at] = static_cast<uint8_t>(there);
    most = max(most, there * kMostChunks + (kMostChunks - 1 - static_cast<uint32_t>(chunk)));
  }
  most = __reduce_max_sync(kAllLanes, most);
  if (threadIdx.x % kWarp == 0) keys[row] = most ^ (kMostChunks - 1);
}

// Sorts rows by key, stably: order[number of rows that come before] = row. One warp per row counts the rows before it.
__global__ void __launch_bounds__(kThreads)
    RankRowsKernel(const uint32_t* __restrict__ keys, int rows, int32_t* __restrict__ order) {
  const int row = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) / kWarp;
  StartNext();
  WaitForPrevious();
  if (row >= rows) return;
  const uint32_t key = keys[row];
  int before = 0;
#pragma unroll 4
  for (int other = static_cast<int>(threadIdx.x) % kWarp; other < rows; other += kWarp) {
    const uint32_t there = keys[other];
    before += there < key || (there == key && other < row) ? 1 : 0;
  }
  before = __reduce_add_sync(kAllLanes, before);
  if (threadIdx.x % kWarp == 0) order[before] = row;
}

constexpr int kChunksAtOnce = 32;  // chunks of a block of TileWordsKernel
constexpr int kRowsAtOnce = 24;    // rows that a block of TileWordsKernel reads at a time

// words [token tiles][chunks] = the largest number of words of a tile's rows in each chunk. Block (x, y) takes tile x
// and chunks y * kChunksAtOnce and on; threadIdx.x is the chunk, threadIdx.y the row.
__global__ void __launch_bounds__(kChunksAtOnce* kRowsAtOnce)
    TileWordsKernel(const __grid_constant__ RowWords rows, const int32_t* __restrict__ order, uint8_t* words) {
  __shared__ int most[kChunksAtOnce];
  const int first = static_cast<int>(blockIdx.x) * kPrefillTokens;
  const int end = min(first + kPrefillTokens, rows.rows);
  const int column = static_cast<int>(threadIdx.x);
  const int chunk = static_cast<int>(blockIdx.y) * kChunksAtOnce + column;
  StartNext();
  WaitForPrevious();
  if (threadIdx.y == 0) most[column] = 1;
  __syncthreads();
  if (chunk < rows.chunks) {
    int longest = 1;
#pragma unroll
    for (int i = 0; i < kPrefillTokens / kRowsAtOnce; ++i) {
      const int at = first + static_cast<int>(threadIdx.y) + i * kRowsAtOnce;
      if (at < end) {
        longest = max(longest, static_cast<int>(rows.of[static_cast<int64_t>(order[at]) * rows.chunks + chunk]));
      }
    }
    atomicMax(&most[column], longest);
  }
  __syncthreads();
  if (threadIdx.y == 0 && chunk < rows.chunks) {
    words[static_cast<int64_t>(blockIdx.x) * rows.chunks + chunk] = static_cast<uint8_t>(most[column]);
  }
}

// The stream of one level in a dimension of the chunk, zero extended to four words; zeros for length 0 (`streams`
// null).
__device__ __forceinline__ uint4 LoadStream(const WordTables& tables, const uint32_t* streams, int levels, int dim,
                                            int level) {
  if (streams == nullptr) return make_uint4(0, 0, 0, 0);
  const uint32_t* stream =
      streams + (static_cast<int64_t>(dim & (tables.masks - 1)) * levels + level) * tables.stream_words;
  if (tables.stream_words == 4) return __ldg(reinterpret_cast<const uint4*>(stream));
  const uint2 two = __ldg(reinterpret_cast<const uint2*>(stream));
  return make_uint4(two.x, two.y, 0, 0);
}

// Expands codes to streams, with as many words as the token's tile takes in the chunk, and writes scales and gains.
// Block (x, y) takes block x of 16 dimensions and tokens y * kTokensPerBlock and on; four lanes serve a token. Block
// (0, 0) also zeroes `flags`.
__global__ void __launch_bounds__(kThreads)
    ExpandChunkWordsKernel(const __grid_constant__ ChunkWords rows, ScActivationView a, ScStreams out,
                           float2* __restrict__ scaled_gains, int* flags, int flag_count) {
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
  // A token takes four dependent loads, so the loads of the next token are issued before this token's streams are made.
  struct Token {
    int64_t row = 0;     // row of the activations
    int words = 1;       // words of the tile in the chunk
    uint32_t codes = 0;  // this lane's four codes, 0 for padding
    StreamTable own;     // streams and gain of the token's length in the chunk
  };
  const auto load = [&](int token) {
    Token of;
    if (token >= end_token) return of;
    of.words = rows.words[token / out.tile_tokens * out.chunks + chunk];
    if (token >= out.tokens) return of;
    of.row = rows.order[token];
    of.codes = *reinterpret_cast<const uint32_t*>(a.codes + of.row * a.dims.padded + dim_block * 16 + lane * 4);
    of.own = rows.of[of.words - 1].streams[rows.slots.slots[of.row * rows.slots.per_row + chunk]];
    return of;
  };
  int token = first_token + static_cast<int>(threadIdx.x) / 4;
  Token next = load(token);
  for (; token < end_token; token += kTokensPerPass) {
    const auto [row, words, codes, own] = next;
    next = load(token + kTokensPerPass);
    const bool used = token < out.tokens;
    const int tile = token / out.tile_tokens;
    const WordTables& tables = rows.of[words - 1];
    auto* block = reinterpret_cast<uint32_t*>(out.data + out.block_offset(tile, dim_block, 0));
    const int column = token % out.tile_tokens * 4 + lane;
    const auto entry = [&](int j, int level) {
      return LoadStream(tables, own.streams, rows.levels, block_in_chunk * 16 + lane * 4 + j, level);
    };
    StoreUnits<kMostWords>(
        codes, words, entry, [&](int k) { return ValidBits(k, tables.stoc_len); },
        [&](int unit, uint32_t word) { block[unit * out.tile_tokens * 4 + column] = word; });
    if (lane != 0 || block_in_chunk != 0) continue;
    const float scale = used ? a.scales[static_cast<int64_t>(chunk) * a.tokens + row] : 0.0f;
    scaled_gains[static_cast<int64_t>(chunk) * out.tokens_padded() + token] = make_float2(scale, own.gain);
  }
}

// Words of a stream in a group of lengths.
int WordsOf(const LengthGroup& group) { return (group.order->config.stoc_len + 31) / 32; }

// Sets rows->of and rows->levels, and the number of words of each group.
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

void LaunchScChunkWords(DeviceContext& ctx, const CallLengths& lengths, const ScActivationView& a,
                        const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxScTasks && a.tokens >= 1);
  STOCH_CHECK(lengths.group_of != nullptr && lengths.slots.per_row == a.dims.chunks);
  Scratch scratch(ctx.workspace);
  ChunkWordsArgs args;
  ChunkWords rows;
  RowWords row_words;
  SetTables(ctx, lengths, &rows, &row_words.groups);
  rows.slots = row_words.slots = lengths.slots;
  row_words.group_of = lengths.group_of;
  row_words.rows = static_cast<int>(a.tokens);
  row_words.chunks = static_cast<int>(a.dims.chunks);
  int64_t out_features[kMaxScTasks] = {};
  int supers = 0;
  for (int i = 0; i < count; ++i) {
    out_features[i] = tasks[i].weight.rows;
    supers = AddTask(tasks[i], supers, &args);
  }
  const ScTraits four = FourWords(ctx.tables.Traits(*lengths.groups.back().order));
  LinearPlan plan = PlanScPrefill(
      ctx.traits, four, {a.tokens, a.dims.dims, std::span(out_features).first(static_cast<size_t>(count))}, true);
  static_cast<StreamShape&>(args.streams) = MakeStreamShape(a.dims, a.tokens, kPrefillTokens, four.stoc_len);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  auto* const scaled_gains = scratch.Take<float2>(args.streams.scale_count());
  args.scaled_gains = scaled_gains;
  const int chunks = args.streams.chunks;
  const int64_t count_of_words = ChunkWordCount(a.tokens, chunks);
  auto* const words = scratch.Take<uint8_t>(count_of_words);
  plan.stages = ChunkWordStages(ctx.traits, a.tokens, chunks);
  plan.shared_bytes = kRingHeaderBytes + plan.stages * kChunkStageBytes + count_of_words;
  args.words = rows.words = words;
  row_words.of = scratch.Take<uint8_t>(a.tokens * chunks);
  auto* const keys = scratch.Take<uint32_t>(a.tokens);
  auto* const order = scratch.Take<int32_t>(a.tokens + 1);  // the prefill kernel reads pairs, of an odd number one more
  args.order = rows.order = order;
  const auto clusters = static_cast<int>(MaxChunkWordsClusters(ctx, plan));
  STOCH_CHECK(clusters >= 1);
  // The kernel multiplies every tile at full width, so the schedule is made for the padded number of tokens.
  args.schedule = MakePrefillSchedule(clusters, supers, args.streams.tokens_padded(), chunks);
  SortPlaces(&args.schedule);
  const int flags = args.schedule.rest() * kPrefillFlags;
  args.partial = scratch.Take<float>(static_cast<int64_t>(args.schedule.rest()) * kSuperRows * kPrefillTokens);
  args.flags = scratch.Take<int>(flags);
  const dim3 warps(static_cast<unsigned>((a.tokens + kThreads / kWarp - 1) / (kThreads / kWarp)));
  LaunchOverlapped(ctx, RowKeysKernel, warps, dim3(kThreads), 0, row_words, keys);
  LaunchOverlapped(ctx, RankRowsKernel, warps, dim3(kThreads), 0, static_cast<const uint32_t*>(keys), row_words.rows,
                   order);
  const dim3 tiles(static_cast<unsigned>(args.streams.token_tiles),
                   static_cast<unsigned>((chunks + kChunksAtOnce - 1) / kChunksAtOnce));
  LaunchOverlapped(ctx, TileWordsKernel, tiles, dim3(kChunksAtOnce, kRowsAtOnce), 0, row_words,
                   static_cast<const int32_t*>(order), words);
  const dim3 grid(static_cast<unsigned>(args.streams.dim_blocks),
                  static_cast<unsigned>((args.streams.tokens_padded() + kTokensPerBlock - 1) / kTokensPerBlock));
  LaunchOverlapped(ctx, ExpandChunkWordsKernel, grid, dim3(kThreads), 0, rows, a, args.streams, scaled_gains,
                   args.flags, flags);
  LaunchChunkWordsWgmma(ctx, plan, args);
}

}  // namespace stoch::cuda
