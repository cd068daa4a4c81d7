// SPDX-License-Identifier: Apache-2.0
// The kernels of the tile route that use no tensor cores: packing keys and values, softmax, quantizing probabilities.
#include <algorithm>

#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSoftmaxWarps = 4;  // warps of a block of the softmax kernel; each takes one row

// Returns four codes with their ranks. The mask of dimension (for values: position) first_dim + j * step selects the
// rank of code j.
__device__ PackedWord Pack(const ScTables& tables, uint32_t codes, int first_dim, int step) {
  uint32_t ranks = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int mask = (first_dim + j * step) & (tables.masks - 1);
    const uint32_t level = (codes >> (8 * j)) & 0x7f;
    ranks |= static_cast<uint32_t>(tables.ranks[mask * tables.levels + static_cast<int>(level)]) << (8 * j);
  }
  return {ranks, codes};
}

// Gathers the K and V codes of a sequence from its cache pages into args.kv, contiguous by position and each with its
// rank (PackedWord), and copies their scales. Launched with one block per (kKeyBlock positions, KV head, sequence of
// the batch).
__global__ void __launch_bounds__(kThreads) PackKvKernel(const TileArgs args) {
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  const auto sequence_index = static_cast<int32_t>(blockIdx.z);
  const PassSequence sequence = a.pass.sequences[sequence_index];
  const int head = static_cast<int>(blockIdx.y);
  const int begin = static_cast<int>(blockIdx.x) * kKeyBlock;
  if (sequence.packed_begin < 0 || begin >= sequence.length) return;
  if (begin < FirstKept(a, sequence.start_position)) return;  // no row of the batch sees positions before FirstKept
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(sequence_index) * a.pass.max_pages;
  const int page_mask = kv.page_tokens - 1;
  const int64_t packed = static_cast<int64_t>(head) * args.kv.positions + sequence.packed_begin + begin;

  const int k_words = kv.head_dim / 4;
  PackedWord* k_to = args.kv.k + packed * k_words;
  for (int i = static_cast<int>(threadIdx.x); i < k_words * kKeyBlock; i += kThreads) {
    const int word = i / kKeyBlock;
    const int t = begin + i % kKeyBlock;
    PackedWord value{0, 0};
    if (t < sequence.length) {
      const uint32_t codes = kv.k_words[kv.KWord(pages[t >> kv.page_shift], head, word, t & page_mask)];
      value = Pack(args.qk, codes, 4 * word, 1);
    }
    k_to[i] = value;
  }
  PackedWord* v_to = args.kv.v + packed / 4 * kv.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < kKeyBlock / 4 * kv.head_dim; i += kThreads) {
    const int t = begin + i / kv.head_dim * 4;
    PackedWord value{0, 0};
    if (t < sequence.length) {
      uint32_t codes = kv.v_words[kv.VWord(pages[t >> kv.page_shift], head, (t & page_mask) >> 2, i % kv.head_dim)];
      // Bytes after the sequence's last position may hold values of an earlier owner of the page.
      if (sequence.length - t < 4) codes &= (1u << (8 * (sequence.length - t))) - 1;
      value = Pack(args.av, codes, t, 1);
    }
    v_to[i] = value;
  }
  if (threadIdx.x < kKeyBlock) {
    const int t = begin + static_cast<int>(threadIdx.x);
    float k_scale = 0.0f;
    float v_scale = 0.0f;
    if (t < sequence.length) {
      const int64_t from = kv.Scale(pages[t >> kv.page_shift], head, t & page_mask);
      k_scale = kv.k_scales[from];
      v_scale = kv.v_scales[from];
    }
    args.kv.k_scales[packed + threadIdx.x] = k_scale;
    args.kv.v_scales[packed + threadIdx.x] = v_scale;
  }
}

// Variants of the softmax kernel. kPerToken and kPerRow are the modes; kHeadMax and kHeadOutput are the two passes of
// mode kPerHead: the largest probability of each head, then the codes at its scale.
enum class Phase : uint8_t { kPerToken, kPerRow, kHeadMax, kHeadOutput };

// ---- One warp per row and head turns counts into probabilities and codes, without a block barrier.
//
// Lane l takes positions 4 l .. 4 l + 3 of every 128, so that all loads and stores are vectors. Of the kRowLanes (256)
// lanes of the softmax sum, lane l then owns lanes 4 l + i and 128 + 4 l + i. Folding the sum by halves adds lanes 128
// apart within a thread, 64 .. 4 apart between threads 16 .. 1 apart, and 2 and 1 apart within a thread again.
constexpr int kStep = 128;  // positions of a warp's vector load
static_assert(kRowLanes == 2 * kStep && kKeyBlock % kStep == 0);
// Rows of up to so many positions keep their numbers in shared memory from pass to pass. For longer rows, an SM would
// have too few warps, so every pass computes the numbers again (docs/tuning/attention.md#prompts).
constexpr int kMaxKept = 2048;
static_assert(kSoftmaxWarps * kMaxKept * sizeof(float) <= 48 * 1024);  // more needs an attribute

// Folds the softmax sum in the order of kernels/math/reduce.h; every thread of the warp gets the total. low, high: the
// thread's lanes 4 l + i and 128 + 4 l + i.
__device__ __forceinline__ float FoldWarpLanes(const float (&low)[4], const float (&high)[4]) {
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = low[i] + high[i];
#pragma unroll
  for (int s = 16; s > 0; s /= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = x[i] + __shfl_down_sync(0xffffffffu, x[i], s);
  }
  return __shfl_sync(0xffffffffu, (x[0] + x[2]) + (x[1] + x[3]), 0);
}

// The largest value of a warp, in every lane, by butterfly reduction (shfl_xor).
__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, s));
  return value;
}

// A row of counts, and the numbers that turn counts into scores. Pointers are to position 0 of the sequence.
struct SoftmaxRow {
  const int16_t* counts;
  const float* k_scales;
  const float* v_scales;
  int first;   // first position that the row sees
  int length;  // the row's own position + 1
  float gain, q_scale, inv_sqrt;

  // Scores of positions t .. t + 3; -inf for positions that the row does not see.
  __device__ __forceinline__ float4 Scores(int t) const {
    const short4 c = *reinterpret_cast<const short4*>(counts + t);
    const float4 k = *reinterpret_cast<const float4*>(k_scales + t);
    float4 s;
    s.x = BipolarProduct(c.x, gain, q_scale, k.x) * inv_sqrt;
    s.y = BipolarProduct(c.y, gain, q_scale, k.y) * inv_sqrt;
    s.z = BipolarProduct(c.z, gain, q_scale, k.z) * inv_sqrt;
    s.w = BipolarProduct(c.w, gain, q_scale, k.w) * inv_sqrt;
    const float lowest = BitsToFloat(0xff800000u);
    if (t + 3 >= length) {
      if (t >= length) s.x = lowest;
      if (t + 1 >= length) s.y = lowest;
      if (t + 2 >= length) s.z = lowest;
      s.w = lowest;
    }
    if (t < first) {
      s.x = lowest;
      if (t + 1 < first) s.y = lowest;
      if (t + 2 < first) s.z = lowest;
      if (t + 3 < first) s.w = lowest;
    }
    return s;
  }
};

// exp(s - largest) of four positions.
__device__ __forceinline__ float4 ExpOf(const float4& s, float largest) {
  return {Exp(s.x - largest), Exp(s.y - largest), Exp(s.z - largest), Exp(s.w - largest)};
}

// Weights (numbers to quantize) of positions t .. t + 3: probabilities, in kPerToken times the scales of the values.
template <Phase kPhase>
__device__ __forceinline__ float4 Weights(const SoftmaxRow& row, const float4& e, float sum, int t) {
  float4 p = {e.x / sum, e.y / sum, e.z / sum, e.w / sum};
  if constexpr (kPhase == Phase::kPerToken) {
    const float4 v = *reinterpret_cast<const float4*>(row.v_scales + t);
    p = {p.x * v.x, p.y * v.y, p.z * v.z, p.w * v.w};
  }
  return p;
}

// Writes the levels of the row's weights from position `begin` on, and zeros from row.length up to `padded`. Each word
// has four levels and minus the number of ones of their streams (TileScratch::p). weights(t): the weights of positions
// t .. t + 3.
template <typename WeightsAt>
__device__ __forceinline__ void WriteLevels(const TileArgs& args, const SoftmaxRow& row, float p_scale, int begin,
                                            int padded, PackedWord* to, const WeightsAt& weights) {
  // Counts with the highest level of v, whose thermometer is all ones: the ones of the stream of p.
  const uint8_t* last_column = args.av.counts8 + args.av.levels - 1;
  for (int t = begin + static_cast<int>(threadIdx.x & 31) * 4; t < padded; t += kStep) {
    PackedWord word{0, 0};
    if (t < row.length) {
      const float4 p = weights(t);
      const float values[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int level = BipolarLevel(values[i], p_scale, args.av.q_max);
        if (level == 0) continue;
        const int table_row = ((t + i) & (args.av.masks - 1)) * args.av.levels + level;
        const uint32_t ones = last_column[table_row * args.av.levels];
        word.x |= static_cast<uint32_t>(level) << (8 * i);
        word.y |= ((0u - ones) & 0xff) << (8 * i);
      }
    }
    to[t / 4] = word;
  }
}

// Turns counts of q k into codes and scales of probabilities, one warp per row. Launched with a block per
// (kSoftmaxWarps rows of a tile, head, tile). keeps: whether the launch has shared memory for `stride` numbers a warp,
// in which each lane keeps its scores for the next pass, then the exponentials, then the weights.
template <Phase kPhase>
__global__ void __launch_bounds__(kSoftmaxWarps * 32) TileSoftmaxKernel(const TileArgs args, bool keeps) {
  extern __shared__ float4 kept_numbers[];  // [warp][step][lane]
  const AttentionArgs& a = args.attention;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int head = static_cast<int>(blockIdx.y);
  const QueryTile tile = args.tiles[blockIdx.z];
  const int tile_row = static_cast<int>(blockIdx.x) * kSoftmaxWarps + warp;
  const int64_t row_index = (static_cast<int64_t>(blockIdx.z) * a.num_heads + head) * kQueryTile + tile_row;
  const int padded = (tile.length() + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  const int64_t row_at = args.RowAt(row_index, tile);
  const int begin = FirstKept(a, tile.PositionOf(0));
  PackedWord* to = args.scratch.p + row_at / 4;
  // The tensor cores read all kQueryTile rows, so rows that the tile does not have become zero codes.
  if (tile_row >= tile.num_rows) {
    if constexpr (kPhase != Phase::kHeadMax) {
      for (int i = begin / 4 + lane; i < padded / 4; i += 32) to[i] = {0, 0};
    }
    return;
  }
  const int pass_row = tile.first_row + tile_row;
  const int64_t packed =
      static_cast<int64_t>(head / a.group) * args.kv.positions + a.pass.sequences[tile.sequence].packed_begin;
  SoftmaxRow row;
  row.counts = args.scratch.scores + row_at;
  row.k_scales = args.kv.k_scales + packed;
  row.v_scales = args.kv.v_scales + packed;
  const int position = tile.PositionOf(tile_row);
  row.first = FirstSeen(a, position);
  row.length = position + 1;
  row.gain = args.qk.gain;
  row.q_scale = args.q.scales[static_cast<int64_t>(pass_row) * a.num_heads + head];
  row.inv_sqrt = a.inv_sqrt;
  const int steps = (row.length - begin + kStep - 1) / kStep;  // the first step is at `begin`, a multiple of kRowLanes
  float4* const kept = keeps ? kept_numbers + warp * (args.scratch.stride / 4) + lane : nullptr;

  float largest = BitsToFloat(0xff800000u);
  for (int i = 0; i < steps; ++i) {
    const int t = begin + i * kStep + lane * 4;
    if (t >= row.length) break;
    const float4 s = row.Scores(t);
    if (keeps) kept[i * 32] = s;
    largest = fmaxf(largest, fmaxf(fmaxf(s.x, s.y), fmaxf(s.z, s.w)));
  }
  largest = WarpMax(largest);

  float low[4] = {};
  float high[4] = {};
  const auto add_step = [&](int i, float(&lanes)[4]) {
    const int t = begin + i * kStep + lane * 4;
    if (t >= row.length) return;
    const float4 e = ExpOf(keeps ? kept[i * 32] : row.Scores(t), largest);
    if (keeps) kept[i * 32] = e;
    lanes[0] = lanes[0] + e.x;
    lanes[1] = lanes[1] + e.y;
    lanes[2] = lanes[2] + e.z;
    lanes[3] = lanes[3] + e.w;
  };
  for (int i = 0; i < steps; i += 2) {
    add_step(i, low);
    add_step(i + 1, high);
  }
  const float sum = FoldWarpLanes(low, high);
  if (lane == 0 && !IsFinite(sum)) a.reporter.Report();

  float* head_max = args.window.p_heads + static_cast<int64_t>(tile.sequence) * a.num_heads + head;
  float p_max = 0.0f;
  if constexpr (kPhase != Phase::kHeadOutput) {
    for (int i = 0; i < steps; ++i) {
      const int t = begin + i * kStep + lane * 4;
      if (t >= row.length) break;
      const float4 p = Weights<kPhase>(row, keeps ? kept[i * 32] : ExpOf(row.Scores(t), largest), sum, t);
      if (keeps) kept[i * 32] = p;
      p_max = fmaxf(p_max, fmaxf(fmaxf(p.x, p.y), fmaxf(p.z, p.w)));
    }
    p_max = WarpMax(p_max);
    if constexpr (kPhase == Phase::kHeadMax) {
      // A probability is not negative, so its float bits are ordered as integers.
      if (lane == 0) atomicMax(reinterpret_cast<int*>(head_max), static_cast<int>(FloatToBits(p_max)));
      return;
    }
  } else {
    p_max = *head_max;
  }

  const float p_scale = BipolarScale(p_max, args.av.q_max);
  if (lane == 0) args.scratch.p_scales[row_index] = p_scale;
  WriteLevels(args, row, p_scale, begin, padded, to, [&](int t) -> float4 {
    if (!keeps) return Weights<kPhase>(row, ExpOf(row.Scores(t), largest), sum, t);
    const float4 last = kept[(t - begin) / kStep * 32];
    return kPhase == Phase::kHeadOutput ? Weights<kPhase>(row, last, sum, t) : last;
  });
}

template <Phase kPhase>
void LaunchSoftmax(DeviceContext& ctx, const TileArgs& args) {
  const dim3 grid(kQueryTile / kSoftmaxWarps, static_cast<unsigned>(args.heads), static_cast<unsigned>(args.num_tiles));
  const bool keeps = args.scratch.stride <= kMaxKept;
  const size_t bytes = keeps ? kSoftmaxWarps * static_cast<size_t>(args.scratch.stride) * sizeof(float) : 0;
  TileSoftmaxKernel<kPhase><<<grid, kSoftmaxWarps * 32, bytes, ctx.stream>>>(args, keeps);
  STOCH_CUDA_LAUNCH("TileSoftmaxKernel");
}

}  // namespace

void LaunchPackKv(DeviceContext& ctx, const TileArgs& args, const TileBatch& batch) {
  const dim3 grid(static_cast<unsigned>((batch.max_length + kKeyBlock - 1) / kKeyBlock),
                  static_cast<unsigned>(args.attention.kv.num_kv_heads), static_cast<unsigned>(batch.num_sequences));
  // Copy of the arguments whose sequences and page tables begin at the batch's first sequence.
  TileArgs of_batch = args;
  PassView& pass = of_batch.attention.pass;
  pass.sequences += batch.first_sequence;
  pass.pages += int64_t{batch.first_sequence} * pass.max_pages;
  PackKvKernel<<<grid, kThreads, 0, ctx.stream>>>(of_batch);
  STOCH_CUDA_LAUNCH("PackKvKernel");
}

void LaunchTileSoftmax(DeviceContext& ctx, const TileArgs& args, AttentionMode mode, bool head_max) {
  switch (mode) {
    case AttentionMode::kPerToken: return LaunchSoftmax<Phase::kPerToken>(ctx, args);
    case AttentionMode::kPerRow: return LaunchSoftmax<Phase::kPerRow>(ctx, args);
    case AttentionMode::kPerHead:
      return head_max ? LaunchSoftmax<Phase::kHeadMax>(ctx, args) : LaunchSoftmax<Phase::kHeadOutput>(ctx, args);
    case AttentionMode::kExact: return;
  }
}

}  // namespace stoch::cuda
