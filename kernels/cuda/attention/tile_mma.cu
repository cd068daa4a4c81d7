// SPDX-License-Identifier: Apache-2.0
// q k and p v of tiles of rows by binary tensor cores (mma.sync m16n8k256 with and.popc).
//
// A lane of a quad (four neighbouring lanes) owns four dimensions (in p v: positions) of every group of sixteen, with
// all kWords 32-cycle words of their streams and thermometers. One mma step takes two words of a lane; which two does
// not matter as long as both operands agree. Four words of a row are a "unit": 16 bytes, two steps.
#include "kernels/base/check.h"
#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroup = 16;      // dimensions (in p v: positions) of a group: four words of codes
constexpr int kScoreKeys = 32;  // keys that a warp of the score kernel takes at a time

// Returns a word whose 32 bits all equal the sign bit of byte j of `codes`.
template <int j>
__device__ __forceinline__ uint32_t SignWord(uint32_t codes) {
  uint32_t result;
  constexpr uint32_t kSelect = 0x1111u * (8 + j);
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(result) : "r"(codes), "n"(kSelect));
  return result;
}

// Byte j of `ranks`.
template <int j>
__device__ __forceinline__ int32_t RankOf(uint32_t ranks) {
  return static_cast<int32_t>(__byte_perm(ranks, 0, 0x4440 + j));
}

// Sets to[0..count) to words [first, first + count) of the thermometer of code j: ones below the rank, complemented for
// a negative code.
template <int j, int first, int count>
__device__ __forceinline__ void Thermometer(PackedWord word, uint32_t* to) {
  const int32_t rank = RankOf<j>(word.x);
  const uint32_t negative = SignWord<j>(word.y);
  const uint32_t positive = ~negative;
#pragma unroll
  for (int w = 0; w < count; ++w) {
    to[w] = __funnelshift_lc(positive, negative, static_cast<uint32_t>(max(rank - 32 * (first + w), 0)));
  }
}

// Sets `to` to the two thermometer words that mma step `step` takes of four codes with kWords words each.
template <int kWords, int step>
__device__ __forceinline__ void ThermometerStep(PackedWord word, uint32_t (&to)[2]) {
  if constexpr (kWords == 4) {
    Thermometer<step / 2, step % 2 * 2, 2>(word, to);
  } else {
    static_assert(kWords == 2);
    Thermometer<step, 0, 2>(word, to);
  }
}

// ---- q k. A block takes kRows of the 64 rows of a tile: the streams of all rows do not fit in 99 KB of shared memory,
// and on GPUs where they fit, larger blocks are no faster.
//
// Shared memory holds the streams of the block's queries as A fragments, [step][16-row tile][lane] x 16 bytes: words 0
// and 1 of rows r and r + 8, interleaved, so that one load gives the four registers of a fragment without moves. After
// them lie the bytes of the sign correction, [group][half][row][lane of quad] x 4 bytes: first [x < 0], then [x < 0] -
// ones of x's stream.
constexpr int kRows = kTileScoreRows;
constexpr int kM = kRows / 16;  // fragments of rows

// Returns the index, in 32-bit words, of word 0 of a row's fragment; word 1 is two words further.
__device__ __forceinline__ int FragmentWord(int step, int row, int quad_lane) {
  return (((step * (kRows / 16) + row / 16) * 8 + row % 8) * 4 + quad_lane) * 4 + row / 8 % 2;
}

// Sizes of the score kernel's shared memory: streams, then the bytes of the sign correction.
template <int kHeadDim, int kWords>
struct ScoreShared {
  static constexpr int kGroups = kHeadDim / kGroup;
  static constexpr int64_t kStreamBytes = int64_t{kGroups} * kWords * kRows * 4 * 16;
  static constexpr int64_t kBytes = kStreamBytes + int64_t{kGroups} * 2 * kRows * 4 * 4;
};

// Looks up the streams of one head's queries of a tile in tables.streams, and writes them as fragments, with the bytes
// of the sign correction, to shared memory. Called by all threads of the block.
template <int kHeadDim, int kWords>
__device__ void StageQueries(const TileArgs& args, const QueryTile& tile, int head, uint32_t* fragments,
                             uint32_t* bytes) {
  const ScTables& tables = args.qk;
#pragma unroll 4
  for (int index = static_cast<int>(threadIdx.x); index < kHeadDim * kRows; index += kThreads) {
    const int lane = index & 3;
    const int row = index / 4 % kRows;
    const int j = index / (4 * kRows) & 3;
    const int group = index / (16 * kRows);
    const int dim = group * kGroup + lane * 4 + j;
    int code = 0;
    if (row < tile.num_rows) {
      const int64_t vector = static_cast<int64_t>(tile.first_row + row) * args.attention.num_heads + head;
      code = reinterpret_cast<const uint8_t*>(args.q.words)[vector * kHeadDim + dim];
    }
    const bool negative = (code & 0x80) != 0;
    const int64_t table_row = (dim & (tables.masks - 1)) * tables.levels + (code & 0x7f);
    uint32_t words[kWords];
    const uint32_t* from = tables.streams + table_row * kWords;
    int ones = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int bits = tables.stoc_len - 32 * w;
      const uint32_t valid = bits >= 32 ? 0xffffffffu : (bits <= 0 ? 0u : (1u << bits) - 1);
      words[w] = negative ? ~from[w] & valid : from[w];
      ones += __popc(words[w]);
    }
    // Word w of code j is number j * kWords + w of the words that this lane has of the group; mma step s takes words 2
    // s and 2 s + 1.
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int number = j * kWords + w;
      fragments[FragmentWord(group * 2 * kWords + number / 2, row, lane) + (number & 1) * 2] = words[w];
    }
    uint8_t* correction = reinterpret_cast<uint8_t*>(bytes + (group * 2 * kRows + row) * 4 + lane) + j;
    correction[0] = negative ? 1 : 0;
    correction[kRows * 16] = static_cast<uint8_t>((negative ? 1 : 0) - ones);
  }
}

// Adds the products of one group of dimensions, mma steps `step` and later (the caller passes 0), for 16 kM rows x
// kScoreKeys keys. k: this lane's codes of four keys. fragments: the lane's first fragment of the group.
template <int kWords, int step = 0>
__device__ __forceinline__ void ScoreSteps(int32_t (&acc)[kM][4][4], const PackedWord (&k)[4], const uint4* fragments) {
  uint4 a[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) a[m] = fragments[(step * kM + m) * 32];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    uint32_t b[2];
    ThermometerStep<kWords, step>(k[n], b);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const uint32_t of_rows[4] = {a[m].x, a[m].y, a[m].z, a[m].w};
      MmaBits(acc[m][n], of_rows, b[0], b[1]);
    }
  }
  if constexpr (step + 1 < 2 * kWords) ScoreSteps<kWords, step + 1>(acc, k, fragments);
}

// Writes the counts of q k to scratch.scores. Launched with a block per (query head, tile, part of kRows rows).
template <int kHeadDim, int kWords>
__global__ void __launch_bounds__(kThreads, 2) TileScoresKernel(const TileArgs args) {
  extern __shared__ uint4 fragments[];
  constexpr int kGroups = kHeadDim / kGroup;
  uint32_t* bytes =
      reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(fragments) + ScoreShared<kHeadDim, kWords>::kStreamBytes);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int head = static_cast<int>(blockIdx.x);
  QueryTile tile = args.tiles[blockIdx.y];
  const int length = tile.length();
  int64_t first_row = (static_cast<int64_t>(blockIdx.y) * args.attention.num_heads + head) * kQueryTile;
  const int part = static_cast<int>(blockIdx.z) * kRows;
  if (part >= tile.num_rows) return;  // the tile has no such rows, and nobody reads their scores
  tile.first_row += part;
  tile.num_rows -= part;
  first_row += part;
  StageQueries<kHeadDim, kWords>(args, tile, head, reinterpret_cast<uint32_t*>(fragments), bytes);
  __syncthreads();

  const int kv_head = head / args.attention.group;
  const int64_t packed =
      static_cast<int64_t>(kv_head) * args.kv.positions + args.attention.pass.sequences[tile.sequence].packed_begin;
  const uint4* lane_fragments = fragments + lane;
  const uint32_t* lane_bytes = bytes + lane;
  const int begin = FirstKept(args.attention, tile.PositionOf(0));
  for (int key = begin + warp * kScoreKeys; key < length; key += kWarps * kScoreKeys) {
    // Packed words of this lane's keys: column lane / 4 of each 8-key tile n, word lane % 4 of each group of
    // dimensions.
    const PackedWord* from = args.kv.k + (packed + key) / kKeyBlock * (kHeadDim / 4) * kKeyBlock +
                             (lane & 3) * kKeyBlock + key % kKeyBlock + (lane >> 2);
    int32_t acc[kM][4][4] = {};
    PackedWord k[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) k[n] = from[n * 8];
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {
      PackedWord next[4];
      const PackedWord* ahead = from + (g + 1 < kGroups ? (g + 1) * 4 * kKeyBlock : 0);
#pragma unroll
      for (int n = 0; n < 4; ++n) next[n] = ahead[n * 8];
      ScoreSteps<kWords>(acc, k, lane_fragments + g * kWords * kRows * 4);
      // Sign correction by an int8 product (docs/fast-kernels.md#prompts), x the query, w the key, s_w the key's sign,
      // r its rank: [x<0] (-s_w r - [w<0]) + [w<0] ([x<0] - ones of x).
      const uint32_t* group_bytes = lane_bytes + g * 2 * kRows * 4;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t negative = ByteSigns(k[n].y);
        // in every byte r - 1 for a negative code, else -r
        const uint32_t b0 = (k[n].x + 0x7f7f7f7fu) ^ (negative ^ 0x7f7f7f7fu);
        const uint32_t b1 = negative & 0x01010101u;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const uint32_t of_rows[4] = {group_bytes[m * 64], group_bytes[m * 64 + 32], group_bytes[kRows * 4 + m * 64],
                                       group_bytes[kRows * 4 + m * 64 + 32]};
          MmaBytes(acc[m][n], of_rows, b0, b1);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) k[n] = next[n];
    }
    int16_t* to = args.scratch.scores + first_row * args.scratch.stride + (key - begin) + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int16_t* row = to + static_cast<int64_t>(m * 16 + h * 8 + (lane >> 2)) * args.scratch.stride;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint32_t pair =
              __byte_perm(static_cast<uint32_t>(acc[m][n][2 * h]), static_cast<uint32_t>(acc[m][n][2 * h + 1]), 0x5410);
          *reinterpret_cast<uint32_t*>(row + n * 8) = pair;
        }
      }
    }
  }
}

// ---- p v. A warp takes 32 rows, all dimensions and every kSplits-th group of positions; integer sums may be split
// anywhere.
constexpr int kSplits = kWarps / (kQueryTile / 32);

// Adds the products of unit u of the streams of p, two mma steps: one code with four words, or two codes with two words
// each. zero: always 0, unknown to the compiler. Or-ing it to looked-up words places them in the registers of a
// fragment once; otherwise the compiler would move registers at every use.
template <int kHeadDim, int kWords, int u>
__device__ __forceinline__ void ValueUnit(int32_t (&acc)[2][kHeadDim / 8][4], const PackedWord (&v)[kHeadDim / 8],
                                          const uint32_t (&p)[4], const uint4* table, const ScTables& tables,
                                          int first_position, uint32_t zero) {
  uint32_t a[2][2][4];  // A fragments [16-row tile][step][register]
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    uint4 row;
    if constexpr (kWords == 4) {
      const int mask = (first_position + u) & (tables.masks - 1);
      row = table[mask * tables.levels + static_cast<int>((p[r] >> (8 * u)) & 0xff)];
    } else {
      const uint2* pairs = reinterpret_cast<const uint2*>(table);
      const int mask0 = (first_position + 2 * u) & (tables.masks - 1);
      const int mask1 = (first_position + 2 * u + 1) & (tables.masks - 1);
      const uint2 x = pairs[mask0 * tables.levels + static_cast<int>((p[r] >> (16 * u)) & 0xff)];
      const uint2 y = pairs[mask1 * tables.levels + static_cast<int>((p[r] >> (16 * u + 8)) & 0xff)];
      row = make_uint4(x.x, x.y, y.x, y.y);
    }
    a[r / 2][0][r % 2] = row.x | zero;
    a[r / 2][0][r % 2 + 2] = row.y | zero;
    a[r / 2][1][r % 2] = row.z | zero;
    a[r / 2][1][r % 2 + 2] = row.w | zero;
  }
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
    uint32_t b[2];
    ThermometerStep<kWords, 2 * u>(v[n], b);
#pragma unroll
    for (int m = 0; m < 2; ++m) MmaBits(acc[m][n], a[m][0], b[0], b[1]);
    ThermometerStep<kWords, 2 * u + 1>(v[n], b);
#pragma unroll
    for (int m = 0; m < 2; ++m) MmaBits(acc[m][n], a[m][1], b[0], b[1]);
  }
}

// Computes p v and writes attention.out. Launched with a block per (query head, tile). The streams of p are read
// through L1, since a copy in shared memory saves only 0.5 % of the time of a prompt of 8192 tokens. kChannelScales:
// every value channel has a scale of its own (kPerHead, kPerRow).
template <int kHeadDim, int kWords, bool kChannelScales>
__global__ void __launch_bounds__(kThreads, 1) TileValuesKernel(const TileArgs args) {
  extern __shared__ uint4 shared[];
  constexpr int kTiles = kHeadDim / 8;
  const ScTables& tables = args.av;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int head = static_cast<int>(blockIdx.x);
  const QueryTile tile = args.tiles[blockIdx.y];
  const int length = tile.length();
  const uint4* const table = reinterpret_cast<const uint4*>(tables.streams);

  const int kv_head = head / args.attention.group;
  const int64_t packed =
      static_cast<int64_t>(kv_head) * args.kv.positions + args.attention.pass.sequences[tile.sequence].packed_begin;
  const int row_group = warp & 1;
  const int64_t p_stride = args.scratch.stride / 4;
  const int64_t first_row = (static_cast<int64_t>(blockIdx.y) * args.attention.num_heads + head) * kQueryTile;
  const int begin = FirstKept(args.attention, tile.PositionOf(0));
  const PackedWord* p_from =
      args.scratch.p + (first_row + row_group * 32 + (lane >> 2)) * p_stride + (lane & 3) - begin / 4;
  const PackedWord* v_from = args.kv.v + (packed / 4 + (lane & 3)) * kHeadDim + (lane >> 2);
  int32_t acc[2][kTiles][4] = {};
#pragma unroll 1
  for (int t = begin + (warp >> 1) * kGroup; t < length; t += kSplits * kGroup) {
    uint32_t p[4];
    uint32_t minus_ones[4];  // each byte: minus the number of ones of one code's stream
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const PackedWord word = p_from[r * 8 * p_stride + t / 4];
      p[r] = word.x;
      minus_ones[r] = word.y;
    }
    PackedWord v[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) v[n] = v_from[static_cast<int64_t>(t / 4) * kHeadDim + n * 8];
    const int first_position = t + 4 * (lane & 3);
    ValueUnit<kHeadDim, kWords, 0>(acc, v, p, table, tables, first_position, args.zero);
    ValueUnit<kHeadDim, kWords, 1>(acc, v, p, table, tables, first_position, args.zero);
    if constexpr (kWords == 4) {
      ValueUnit<kHeadDim, kWords, 2>(acc, v, p, table, tables, first_position, args.zero);
      ValueUnit<kHeadDim, kWords, 3>(acc, v, p, table, tables, first_position, args.zero);
    }
    // A code of p is never negative, so only complemented values need a sign correction: minus the ones of p.
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint32_t b = ByteSigns(v[n].y) & 0x01010101u;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t of_rows[4] = {minus_ones[2 * m], minus_ones[2 * m + 1], 0, 0};
        MmaBytes(acc[m][n], of_rows, b, 0);
      }
    }
  }

  __syncthreads();
  int32_t* sums = reinterpret_cast<int32_t*>(shared);  // [kQueryTile][kHeadDim]: sums of counts over all warps
  for (int i = static_cast<int>(threadIdx.x); i < kQueryTile * kHeadDim; i += kThreads) sums[i] = 0;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row_group * 32 + m * 16 + (i / 2) * 8 + (lane >> 2);
        atomicAdd(&sums[row * kHeadDim + n * 8 + (lane & 3) * 2 + (i & 1)], acc[m][n][i]);
      }
    }
  }
  __syncthreads();
  const float* channels = nullptr;
  if constexpr (kChannelScales) {
    channels = args.window.v_channels +
               (static_cast<int64_t>(tile.sequence) * args.attention.kv.num_kv_heads + kv_head) * kHeadDim;
  }
  for (int i = static_cast<int>(threadIdx.x); i < tile.num_rows * kHeadDim; i += kThreads) {
    const int row = i / kHeadDim;
    const int dim = i % kHeadDim;
    float scale = args.scratch.p_scales[first_row + row];
    if constexpr (kChannelScales) scale = scale * channels[dim];
    args.attention
        .out[(tile.first_row + row) * args.attention.out_stride + static_cast<int64_t>(head) * kHeadDim + dim] =
        (static_cast<float>(sums[i]) * tables.gain) * scale;
  }
}

void Launch(DeviceContext& ctx, void (*kernel)(TileArgs), const TileArgs& args, int64_t shared, int parts) {
  AllowShared(ctx, kernel, static_cast<size_t>(shared));
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.num_tiles),
                  static_cast<unsigned>(parts));
  kernel<<<grid, kThreads, static_cast<size_t>(shared), ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("attention tile kernel");
}

template <int kHeadDim, int kWords>
void LaunchScores(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args) {
  STOCH_CHECK(plan.score_shared_bytes == (ScoreShared<kHeadDim, kWords>::kBytes));
  Launch(ctx, &TileScoresKernel<kHeadDim, kWords>, args, plan.score_shared_bytes, kQueryTile / kRows);
}

template <int kHeadDim, int kWords>
void LaunchValues(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, bool channel_scales) {
  auto* kernel =
      channel_scales ? &TileValuesKernel<kHeadDim, kWords, true> : &TileValuesKernel<kHeadDim, kWords, false>;
  STOCH_CHECK(plan.value_shared_bytes == int64_t{kQueryTile} * kHeadDim * 4);
  Launch(ctx, kernel, args, plan.value_shared_bytes, 1);
}

}  // namespace

void LaunchTileScores(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args) {
  const bool wide = args.attention.kv.head_dim == 128;
  if (args.qk.stream_words == 4) {
    wide ? LaunchScores<128, 4>(ctx, plan, args) : LaunchScores<64, 4>(ctx, plan, args);
  } else {
    wide ? LaunchScores<128, 2>(ctx, plan, args) : LaunchScores<64, 2>(ctx, plan, args);
  }
}

void LaunchTileValues(DeviceContext& ctx, const ScTilePlan& plan, const TileArgs& args, AttentionMode mode) {
  const bool wide = args.attention.kv.head_dim == 128;
  const bool channels = mode != AttentionMode::kPerToken;
  if (args.av.stream_words == 4) {
    wide ? LaunchValues<128, 4>(ctx, plan, args, channels) : LaunchValues<64, 4>(ctx, plan, args, channels);
  } else {
    wide ? LaunchValues<128, 2>(ctx, plan, args, channels) : LaunchValues<64, 2>(ctx, plan, args, channels);
  }
}

}  // namespace stoch::cuda
