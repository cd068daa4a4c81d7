// Around the tensor-core kernels of the tile path: packing of keys and values, softmax and quantization.
#include <algorithm>

#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;

// Four codes of dimensions (or positions) first_dim + j * step with their ranks.
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

// One block packs kKeyBlock positions of one KV head of one sequence.
__global__ void __launch_bounds__(kThreads) PackKvKernel(const TileArgs args) {
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  const auto sequence_index = static_cast<int32_t>(blockIdx.z);
  const PassSequence sequence = a.pass.sequences[sequence_index];
  const int head = static_cast<int>(blockIdx.y);
  const int begin = static_cast<int>(blockIdx.x) * kKeyBlock;
  if (sequence.packed_begin < 0 || begin >= sequence.length) return;
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
      // The bytes of later positions in the last word may hold an earlier tenant of the page.
      if (sequence.length - t < 4) codes &= (1u << (8 * (sequence.length - t))) - 1;
      value = Pack(args.av, codes, t, 1);
    }
    v_to[i] = value;
  }
  if (threadIdx.x < kKeyBlock) {
    const int t = begin + static_cast<int>(threadIdx.x);
    if (t < sequence.length) {
      const int64_t from = kv.Scale(pages[t >> kv.page_shift], head, t & page_mask);
      args.kv.k_scales[packed + threadIdx.x] = kv.k_scales[from];
      args.kv.v_scales[packed + threadIdx.x] = kv.v_scales[from];
    }
  }
}

enum class Phase : uint8_t { kPerToken, kPerRow, kHeadMax, kHeadOutput };

// One block per row and head: counts to probabilities to codes. Thread j is lane j of the sum.
template <Phase kPhase>
__global__ void __launch_bounds__(kThreads) TileSoftmaxKernel(const TileArgs args, int shared_scores) {
  extern __shared__ float shared[];
  __shared__ float reduce[kRowLanes];
  const AttentionArgs& a = args.attention;
  const int tid = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const QueryTile tile = args.tiles[blockIdx.z];
  const int tile_row = static_cast<int>(blockIdx.x);
  const int64_t row_index = (static_cast<int64_t>(blockIdx.z) * a.num_heads + head) * kQueryTile + tile_row;
  const int padded = (tile.start_position + tile.num_rows + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  uint8_t* p_bytes = reinterpret_cast<uint8_t*>(args.scratch.p + row_index * (args.scratch.stride / 4));
  if (tile_row >= tile.num_rows) {  // the tensor cores read every row
    if constexpr (kPhase != Phase::kHeadMax) {
      for (int i = tid; i < padded / 4; i += kThreads) reinterpret_cast<PackedWord*>(p_bytes)[i] = {0, 0};
    }
    return;
  }
  const int row = tile.first_row + tile_row;
  const int length = tile.start_position + tile_row + 1;
  const int kv_head = head / a.group;
  const int64_t packed =
      static_cast<int64_t>(kv_head) * args.kv.positions + a.pass.sequences[tile.sequence].packed_begin;
  const float* k_scales = args.kv.k_scales + packed;
  const float* v_scales = args.kv.v_scales + packed;
  const int16_t* counts = args.scratch.scores + row_index * args.scratch.stride;
  const float q_scale = args.q.scales[static_cast<int64_t>(row) * a.num_heads + head];
  const bool in_shared = length <= shared_scores;
  const auto score_of = [&](int t) {
    return BipolarProduct(counts[t], args.qk.gain, q_scale, k_scales[t]) * a.inv_sqrt;
  };

  float largest = BitsToFloat(0xff800000u);
  for (int t = tid; t < length; t += kThreads) {
    const float score = score_of(t);
    if (in_shared) shared[t] = score;  // read again by this thread only
    largest = fmaxf(largest, score);
  }
  largest = BlockMax(largest, reduce);
  float sum = 0.0f;
  for (int t = tid; t < length; t += kThreads) {
    const float e = Exp((in_shared ? shared[t] : score_of(t)) - largest);
    if (in_shared) shared[t] = e;
    sum = sum + e;
  }
  sum = BlockFoldLanes(sum, reduce);
  if (tid == 0 && !IsFinite(sum)) a.finite.Report();
  const auto weight_of = [&](int t, float e) {
    const float p = e / sum;
    if constexpr (kPhase != Phase::kPerToken) return p;
    return p * v_scales[t];
  };
  float* head_max = args.window.p_heads + static_cast<int64_t>(tile.sequence) * a.num_heads + head;
  float p_max = 0.0f;
  if constexpr (kPhase != Phase::kHeadOutput) {
    for (int t = tid; t < length; t += kThreads) {
      const float p = weight_of(t, in_shared ? shared[t] : Exp(score_of(t) - largest));
      if (in_shared) shared[t] = p;
      p_max = fmaxf(p_max, p);
    }
    p_max = BlockMax(p_max, reduce);
    if constexpr (kPhase == Phase::kHeadMax) {
      // Not negative: ordered as integers.
      if (tid == 0) atomicMax(reinterpret_cast<int*>(head_max), static_cast<int>(FloatToBits(p_max)));
      return;
    }
  } else {
    p_max = *head_max;
  }
  const float p_scale = BipolarScale(p_max, args.av.q_max);
  if (tid == 0) args.scratch.p_scales[row_index] = p_scale;
  for (int t = tid; t < padded; t += kThreads) {
    int level = 0;
    int ones = 0;
    if (t < length) {
      float p = 0.0f;
      if (!in_shared) {
        p = weight_of(t, Exp(score_of(t) - largest));
      } else {
        p = kPhase == Phase::kHeadOutput ? weight_of(t, shared[t]) : shared[t];
      }
      level = BipolarLevel(p, p_scale, args.av.q_max);
      // The last column of the table counts every one of a stream.
      const int64_t table_row = (t & (args.av.masks - 1)) * args.av.levels + level;
      if (level != 0) ones = args.av.counts8[table_row * args.av.levels + args.av.levels - 1];
    }
    const int byte = (t >> 2) * 8 + (t & 3);
    p_bytes[byte] = static_cast<uint8_t>(level);
    p_bytes[byte + 4] = static_cast<uint8_t>(-ones);
  }
}

template <Phase kPhase>
void LaunchSoftmax(DeviceContext& ctx, const TileArgs& args) {
  const int shared_scores = static_cast<int>(std::min<int64_t>(args.scratch.stride, kMaxSharedScores));
  const size_t bytes = static_cast<size_t>(shared_scores) * sizeof(float);
  const dim3 grid(kQueryTile, static_cast<unsigned>(args.attention.num_heads), static_cast<unsigned>(args.num_tiles));
  TileSoftmaxKernel<kPhase><<<grid, kThreads, bytes, ctx.stream>>>(args, shared_scores);
  STOCH_CUDA_LAUNCH("TileSoftmaxKernel");
}

}  // namespace

void LaunchPackKv(DeviceContext& ctx, const TileArgs& args, int32_t num_sequences, int32_t max_length) {
  const dim3 grid(static_cast<unsigned>((max_length + kKeyBlock - 1) / kKeyBlock),
                  static_cast<unsigned>(args.attention.kv.num_kv_heads), static_cast<unsigned>(num_sequences));
  PackKvKernel<<<grid, kThreads, 0, ctx.stream>>>(args);
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
