// SPDX-License-Identifier: Apache-2.0
// q k and p v of tiles of rows by int8 tensor cores and adders (sc/tiles/int8_form.cuh), for GPUs that emulate binary
// products. tests/kernels/cuda_code_test checks that the machine code of this file has no binary products.
//
// In the words of int8_form.cuh, queries and rows of probabilities (side a) are "tokens", 32 to a block. Its "rows"
// (side b) are keys, and in p v the dimensions of the values; its "dimensions" are those of the head, and in p v
// positions.
#include "kernels/base/check.h"
#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/tiles/int8_operands.cuh"

namespace stoch::cuda {
namespace {

using tiles::kWarpRows;

constexpr int kRows = kTileTokensNarrow;  // rows of a tile that a block takes
constexpr int kParts = kQueryTile / kRows;
constexpr int kStageDims = kTileInt8Dims;
constexpr int kStageThreads = tiles::kInt8StageThreads<kRows>;
constexpr int kConstantWords = tiles::kInt8ConstantWords<kRows>;
constexpr int kRowWords = kWarpRows * kStageDims / 4;  // codes of a warp's rows in a stage

template <int kWarps>
using Shape = tiles::Shape<kRows, kWarps, kTileInt8Stages, true>;
template <int kWarps>
using Body = tiles::Int8FormBody<Shape<kWarps>>;
using Layout = tiles::Int8Layout<kRows>;

// Where a block (query head, tile, part of kRows rows) works. tile: the part's rows; num_rows <= 0 in parts past the
// tile's end.
struct Part {
  QueryTile tile;
  int head = 0;
  int kv_head = 0;
  int length = 0;         // positions that the whole tile's last row sees
  int begin = 0;          // first position that the scratch holds for the tile's rows (FirstKept)
  int64_t first_row = 0;  // row index, in the scratch, of the part's first row
  int64_t packed = 0;     // index of the sequence's position 0 in args.kv
};
__device__ __forceinline__ Part PartOf(const TileArgs& args) {
  Part part;
  part.tile = args.tiles[blockIdx.y];
  part.head = static_cast<int>(blockIdx.x);
  part.kv_head = part.head / args.attention.group;
  part.length = part.tile.length();
  part.begin = FirstKept(args.attention, part.tile.PositionOf(0));
  const auto skipped = static_cast<int>(blockIdx.z) * kRows;
  part.first_row = (static_cast<int64_t>(blockIdx.y) * args.attention.num_heads + part.head) * kQueryTile + skipped;
  part.packed = static_cast<int64_t>(part.kv_head) * args.kv.positions +
                args.attention.pass.sequences[part.tile.sequence].packed_begin;
  part.tile.first_row += skipped;
  part.tile.num_rows = min(part.tile.num_rows - skipped, kRows);
  return part;
}

// The y words, which are codes, of four packed words `step` apart.
__device__ __forceinline__ uint4 CodesOf(const PackedWord* from, int64_t step) {
  return make_uint4(from[0].y, from[step].y, from[2 * step].y, from[3 * step].y);
}

// ---- q k. Shared memory has the operands of the queries in all stages, then for each warp two stages of codes of
// keys, then for each warp the scratch of Flush.
constexpr int kScoreWarps = kTileInt8ScoreWarps;
constexpr int64_t ScoreBytes(int head_dim) {
  return int64_t{head_dim / kStageDims} * Layout::kWords * 4 + kScoreWarps * (2 * kRowWords * 4 + kTileFlipBytes);
}

// Launched with a block per (query head, tile, part of kRows rows): writes counts of q k to scratch.scores.
template <int kHeadDim>
__global__ void __launch_bounds__(kScoreWarps * 32, 1) Int8ScoresKernel(const TileArgs args) {
  extern __shared__ __align__(16) uint32_t shared[];
  constexpr int kStages = kHeadDim / kStageDims;
  uint32_t* const rows_of_warps = shared + kStages * Layout::kWords;
  uint32_t* const flips = rows_of_warps + kScoreWarps * 2 * kRowWords;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const auto [tile, head, kv_head, length, begin, first_row, packed] = PartOf(args);
  if (tile.num_rows <= 0) return;  // the tile has no such rows, and nobody reads their scores

  constexpr int kAtOnce = kScoreWarps * 32 / kStageThreads;  // stages that the block makes at a time, one per team
  const int of_stage = static_cast<int>(threadIdx.x) % kStageThreads;
  const int team = static_cast<int>(threadIdx.x) / kStageThreads;
#pragma unroll 1
  for (int first = 0; first < kStages; first += kAtOnce) {
    const int stage = min(first + team, kStages - 1);  // teams past the last stage make it again
    tiles::OperandLane at = tiles::OperandLaneOf<kRows>(of_stage, stage * kStageDims);
    if (at.mine < tile.num_rows) {
      const int64_t vector = static_cast<int64_t>(tile.first_row + at.mine) * args.attention.num_heads + head;
      at.codes =
          *reinterpret_cast<const uint2*>(reinterpret_cast<const uint8_t*>(args.q.words) + vector * kHeadDim + at.dim);
    }
    tiles::FillInt8Stage<kRows>(args.qk.int8_entries, args.qk.masks, at, of_stage, flips + team * kConstantWords,
                                shared + stage * Layout::kWords);
    __syncthreads();
  }

  uint4* const rows = reinterpret_cast<uint4*>(rows_of_warps + warp * 2 * kRowWords);
  Body<kScoreWarps> body{SharedAddress(flips) + warp * kTileFlipBytes};
  for (int key = begin + warp * kWarpRows; key < length; key += kScoreWarps * kWarpRows) {
    const PackedWord* from =
        args.kv.k + (packed + key) / kKeyBlock * (kHeadDim / 4) * kKeyBlock + key % kKeyBlock + lane;
    uint4 next = CodesOf(from, kKeyBlock);
    tiles::Sums<Shape<kScoreWarps>> sums = {};
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      uint4* const mine = rows + stage % 2 * kWarpRows;
      mine[lane] = next;
      __syncwarp();  // no lane still reads the other half of `rows`, which the next stage overwrites
      if (stage + 1 < kStages) next = CodesOf(from + (stage + 1) * 4 * kKeyBlock, kKeyBlock);
      body.MultiplyRows(shared + stage * Layout::kWords, mine, stage + 1 == kStages, lane, sums);
    }
    int16_t* const to = args.scratch.scores + first_row * args.scratch.stride + (key - begin) + lane / 4;
#pragma unroll
    for (int m = 0; m < tiles::kRowOperands; ++m) {
#pragma unroll
      for (int n = 0; n < Shape<kScoreWarps>::kTokenTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = n * 8 + lane % 4 * 2 + i % 2;
          to[token * args.scratch.stride + m * 16 + i / 2 * 8] = static_cast<int16_t>(sums[m][n][i]);
        }
      }
    }
  }
}

// ---- p v. The warps of a team together have all dimensions of the values; each team takes kEach of the kValueStages
// stages of positions that the block makes at a time. Shared memory has the operands of these stages, then their codes
// of values, then the scratch of Flush; at the end it has the sums.
constexpr int kValueWarps = kTileInt8ValueWarps;
constexpr int kValueStages = kValueWarps * 32 / kStageThreads;  // stages made at a time
constexpr int64_t ValueBytes(int head_dim) {
  return kValueStages * (int64_t{Layout::kWords} * 4 + head_dim * kStageDims) + kValueWarps * kTileFlipBytes;
}

// Launched with a block per (query head, tile, part of kRows rows): writes attention.out. channel_scales: every value
// channel has a scale of its own (kPerHead, kPerRow).
template <int kHeadDim>
__global__ void __launch_bounds__(kValueWarps * 32, 2) Int8ValuesKernel(const TileArgs args, bool channel_scales) {
  extern __shared__ __align__(16) uint32_t shared[];
  constexpr int kTeamWarps = kHeadDim / kWarpRows;
  constexpr int kTeams = kValueWarps / kTeamWarps;
  constexpr int kEach = kValueStages / kTeams;  // stages of a team
  static_assert(kEach * kTeams == kValueStages && Body<kValueWarps>::kFlushBlocks % kEach == 0);
  uint4* const rows = reinterpret_cast<uint4*>(shared + kValueStages * Layout::kWords);  // [stage][dimension]
  uint32_t* const flips = shared + kValueStages * (Layout::kWords + kHeadDim * kStageDims / 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const auto [tile, head, kv_head, length, begin, first_row, packed] = PartOf(args);
  if (tile.num_rows <= 0) return;

  const int padded = (length + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const int of_stage = static_cast<int>(threadIdx.x) % kStageThreads;
  const int made = static_cast<int>(threadIdx.x) / kStageThreads;  // the stage that this thread helps to make
  const int team = warp / kTeamWarps;
  uint32_t* const operands = shared + made * Layout::kWords;
  Body<kValueWarps> body{SharedAddress(flips) + warp * kTileFlipBytes};
  tiles::Sums<Shape<kValueWarps>> sums = {};
  int since_flush = 0;
  static_assert(kKeyBlock % (kValueStages * kStageDims) == 0);
#pragma unroll 1
  for (int t = begin; t < padded; t += kValueStages * kStageDims) {
    // Codes of rows past the tile's last are 0 (TileSoftmaxKernel).
    tiles::OperandLane at = tiles::OperandLaneOf<kRows>(of_stage, t + made * kStageDims);
    const PackedWord* p = args.scratch.p + ((first_row + at.mine) * args.scratch.stride + at.dim - begin) / 4;
    at.codes = make_uint2(p[0].x, p[1].x);
    for (int i = static_cast<int>(threadIdx.x); i < kValueStages * kHeadDim; i += kValueWarps * 32) {
      rows[i] =
          CodesOf(args.kv.v + ((packed + t) / 4 + i / kHeadDim * (kStageDims / 4)) * kHeadDim + i % kHeadDim, kHeadDim);
    }
    tiles::FillInt8Stage<kRows>(args.av.int8_entries, args.av.masks, at, of_stage, flips + made * kConstantWords,
                                operands);
    __syncthreads();
    since_flush += kEach;
    const bool flush = since_flush == Body<kValueWarps>::kFlushBlocks || t + kValueStages * kStageDims >= padded;
#pragma unroll 1
    for (int i = 0; i < kEach; ++i) {
      const int stage = team * kEach + i;
      body.MultiplyRows(shared + stage * Layout::kWords, rows + stage * kHeadDim + warp % kTeamWarps * kWarpRows,
                        flush && i + 1 == kEach, lane, sums);
    }
    if (flush) since_flush = 0;
    __syncthreads();
  }

  int32_t* const totals = reinterpret_cast<int32_t*>(shared);  // [kRows][kHeadDim]: sums of counts over all teams
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kHeadDim; i += kValueWarps * 32) totals[i] = 0;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < tiles::kRowOperands; ++m) {
#pragma unroll
    for (int n = 0; n < Shape<kValueWarps>::kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int dim = warp % kTeamWarps * kWarpRows + m * 16 + i / 2 * 8 + lane / 4;
        atomicAdd(&totals[(n * 8 + lane % 4 * 2 + i % 2) * kHeadDim + dim], sums[m][n][i]);
      }
    }
  }
  __syncthreads();
  const float* const channels =
      args.window.v_channels +
      (static_cast<int64_t>(tile.sequence) * args.attention.kv.num_kv_heads + kv_head) * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x); i < tile.num_rows * kHeadDim; i += kValueWarps * 32) {
    const int row = i / kHeadDim;
    const int dim = i % kHeadDim;
    float scale = args.scratch.p_scales[first_row + row];
    if (channel_scales) scale = scale * channels[dim];
    args.attention
        .out[(tile.first_row + row) * args.attention.out_stride + static_cast<int64_t>(head) * kHeadDim + dim] =
        (static_cast<float>(totals[i]) * args.av.gain) * scale;
  }
}

dim3 GridOf(const TileArgs& args) {
  return {static_cast<unsigned>(args.heads), static_cast<unsigned>(args.num_tiles), kParts};
}

}  // namespace

void LaunchTileScoresInt8(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args) {
  const bool wide = args.attention.kv.head_dim == 128;
  const auto kernel = wide ? &Int8ScoresKernel<128> : &Int8ScoresKernel<64>;
  STOCH_CHECK(plan.score_shared_bytes == ScoreBytes(args.attention.kv.head_dim));
  AllowShared(ctx, kernel, static_cast<size_t>(plan.score_shared_bytes));
  kernel<<<GridOf(args), kScoreWarps * 32, static_cast<size_t>(plan.score_shared_bytes), ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("Int8ScoresKernel");
}

void LaunchTileValuesInt8(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, AttentionMode mode) {
  const bool wide = args.attention.kv.head_dim == 128;
  const auto kernel = wide ? &Int8ValuesKernel<128> : &Int8ValuesKernel<64>;
  STOCH_CHECK(plan.value_shared_bytes == ValueBytes(args.attention.kv.head_dim));
  AllowShared(ctx, kernel, static_cast<size_t>(plan.value_shared_bytes));
  kernel<<<GridOf(args), kValueWarps * 32, static_cast<size_t>(plan.value_shared_bytes), ctx.stream>>>(
      args, mode != AttentionMode::kPerToken);
  STOCH_CUDA_LAUNCH("Int8ValuesKernel");
}

}  // namespace stoch::cuda
