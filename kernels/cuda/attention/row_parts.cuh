// SPDX-License-Identifier: Apache-2.0
// The steps of the row kernel: scores, softmax, p v. Included by row.cu alone.
#pragma once

#include "kernels/cuda/attention/row_block.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/device/table_lookup.cuh"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda::attention_row {

// A warp's slice of the query, kSlots words of four dimensions each, with its scale and count-table rows.
template <int kSlots>
struct Query {
  // Codes of the whole query [head_dim / 4].
  const uint32_t* codes;
  float scale;
  uint32_t word[kSlots];
  uint32_t rows;  // shared address of the slice's count-table rows
  // Not 0 if a level of the slice has a count of 256, which its byte-wide row cannot hold (TopBytes).
  uint32_t tops;
};

// Results of the softmax that a thread keeps in registers for p v.
struct Probabilities {
  // The sum of the exponentials.
  float sum = 0.0f;
  // If solo (one block for the context), the weight (RowBlock::weight_of) of the thread's own token; else the largest
  // score.
  float own = 0.0f;
  // The largest weight of the row, from which the scale of its codes is made. The softmax leaves it 0 in kHeadOutput,
  // where FinishRow sets the head's maximum over all rows.
  float largest = 0.0f;
  // Mixed variants: the metric (kernels/sc/sc_lengths.h) by which a rule picks the stream length of the row of
  // probabilities.
  float metric = 0.0f;
};

// Adds the counts of 256, which the byte-wide rows of LookUpWord cannot hold, to the partial counts in b.s.parts of the
// `round` tiles from tile `first` on. Such counts are rare, so this is kept out of the look-up loop.
template <int kSlots, Phase kPhase>
__device__ __forceinline__ void AddTops(const RowBlock<kSlots, kPhase>& b, const Query<kSlots>& q, int first,
                                        int round) {
  __syncwarp();
#pragma unroll 1
  for (int word = b.warp * kSlots; word < min((b.warp + 1) * kSlots, b.q_words); ++word) {
    const uint32_t codes = q.codes[word];
    const uint32_t tops = TopBytes(b.qk(), codes);
    if (tops == 0) continue;
#pragma unroll 1
    for (int i = b.lane; i < round * kTileTokens; i += 32) {
      const int t = min(b.token_of(first * kTileTokens + i), b.length - 1);
      b.s.parts[b.warp * kPaddedLanes + Padded(i)] += TopCorrection(b.qk(), tops, b.key_word(t, word), codes);
    }
  }
}

// Computes the scores of the block's tokens. Returns the score that this thread computed last, in a solo row that of
// its only token; -inf if it computed none. Unless the row is solo, scores go to the shared memory of every block of
// the cluster, or to device memory.
template <int kSlots, Phase kPhase, int kBatchTiles>
__device__ __forceinline__ float Scores(const RowBlock<kSlots, kPhase>& b, const Query<kSlots>& q,
                                        uint4 (&k_words)[kBatchTiles][kSlots]) {
  float score = BitsToFloat(0xff800000u);
  for (int first = 0; first < b.own_tiles; first += kRoundTiles) {
    const int round = min(kRoundTiles, b.own_tiles - first);
    for (int batch = 0; batch < round; batch += kBatchTiles) {
      uint4 now[kBatchTiles][kSlots];
#pragma unroll
      for (int i = 0; i < kBatchTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kSlots; ++j) now[i][j] = k_words[i][j];
      }
      if (first + batch + kBatchTiles < b.own_tiles) {
#pragma unroll
        for (int i = 0; i < kBatchTiles; ++i) b.LoadKeys(first + batch + kBatchTiles + i, k_words[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatchTiles; ++i) {
        if (batch + i >= round) break;
        const int local = (batch + i) * kTileTokens + b.lane * kLaneTokens;
        if constexpr (IsFresh(kPhase)) {
          TakeFresh<kSlots>(b.fresh, b.info, b.token_of(first * kTileTokens + local), b.warp, now[i]);
        }
        Counts counts[kLaneTokens];
        LookUpKeys<kSlots>(now[i], q.word, q.rows, b.q_words - b.warp * kSlots, counts);
        *reinterpret_cast<int4*>(b.s.parts + b.warp * kPaddedLanes + Padded(local)) =
            make_int4(counts[0].Sum(), counts[1].Sum(), counts[2].Sum(), counts[3].Sum());
      }
    }
    if (q.tops != 0) AddTops(b, q, first, round);
    __syncthreads();
    const int t = b.token_of(first * kTileTokens + OwnToken());
    if (OwnToken() < round * kTileTokens && t < b.length) {
      int32_t sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += b.s.parts[w * kPaddedLanes + Padded(OwnToken())];
      score = BipolarProduct(sum, b.qk().gain, q.scale, b.k_scale_of(t, first == 0)) * b.a.inv_sqrt;
      if (t < b.visible) score = BitsToFloat(0xff800000u);
      if (!b.solo) {
        if (b.in_shared) {
#pragma unroll 1
          for (int r = 0; r < b.cluster; ++r) Cluster::At(b.s.scores, r)[t] = score;
        } else {
          __stcg(b.spill + t, score);
        }
      }
    }
    if (!b.solo) __syncthreads();
  }
  return score;
}

// Softmax of a solo row, whose context one block has. Each thread keeps its token in registers from the score to the
// weight; only sums and maxima are exchanged.
template <int kSlots, Phase kPhase>
__device__ __forceinline__ Probabilities SoloSoftmax(const RowBlock<kSlots, kPhase>& b, float score) {
  Probabilities p;
  const float largest = BlockMaxOnce(score, b.s.largest);
  const float e = b.own_token < b.length ? Exp(score - largest) : 0.0f;
  b.s.reduce[Padded(OwnToken())] = e;
  __syncthreads();
  p.sum = FoldShared<kPaddedLanes / kWarps>(b.s.reduce);
  if (b.own_token < b.length) p.own = b.weight_of(b.own_token, e, p.sum);
  if constexpr (kPhase != Phase::kHeadOutput) p.largest = BlockMaxOnce(p.own, b.s.largest + kWarps);
  if constexpr (IsMixed(kPhase)) {
    const LengthView& rule = b.args.av_lengths;
    if (!rule.has_rule) return p;
    const float own = b.own_token < b.length ? e / p.sum : 0.0f;
    const float amax = BlockMax(own, b.s.reduce);  // all threads have read s.reduce, so it is free
    float squares = 0.0f;
    if (rule.metric != ScMetric::kAmax) {
      __syncthreads();
      b.s.reduce[Padded(OwnToken())] = Fma(own, own, 0.0f);
      __syncthreads();
      squares = FoldShared<kPaddedLanes / kWarps>(b.s.reduce);
    }
    p.metric = SignedMetric(rule, amax, Sqrt(squares));
  }
  return p;
}

// Softmax of a row that a cluster shares. Every block computes it over the whole row; thread j adds lane j of the sum.
template <int kSlots, Phase kPhase>
__device__ __forceinline__ Probabilities DeepSoftmax(const RowBlock<kSlots, kPhase>& b) {
  Probabilities p;
  if (b.cluster > 1) Cluster::Sync();
  float largest = BitsToFloat(0xff800000u);
#pragma unroll 1
  for (int t = b.tid; t < b.length; t += kThreads) largest = fmaxf(largest, b.kept(t));
  largest = BlockMax(largest, b.s.reduce);
#pragma unroll 1
  for (int t = b.tid; t < b.length; t += kThreads) {
    const float e = Exp(b.kept(t) - largest);
    if (b.in_shared) b.s.scores[t] = e;
    p.sum = p.sum + e;
  }
  p.sum = BlockFoldLanes(p.sum, b.s.reduce);
  if constexpr (IsMixed(kPhase)) {
    const LengthView& rule = b.args.av_lengths;
    if (rule.has_rule) {
      float amax = 0.0f;
      float lane = 0.0f;
#pragma unroll 1
      for (int t = b.tid; t < b.length; t += kThreads) {
        const float own = (b.in_shared ? b.s.scores[t] : Exp(__ldcg(b.spill + t) - largest)) / p.sum;
        amax = fmaxf(amax, own);
        lane = Fma(own, own, lane);
      }
      amax = BlockMax(amax, b.s.reduce);
      const float squares = rule.metric == ScMetric::kAmax ? 0.0f : BlockFoldLanes(lane, b.s.reduce);
      p.metric = SignedMetric(rule, amax, Sqrt(squares));
    }
  }
  if constexpr (kPhase != Phase::kHeadOutput) {
#pragma unroll 1
    for (int t = b.tid; t < b.length; t += kThreads) {
      const float weight = b.weight_of(t, b.in_shared ? b.s.scores[t] : Exp(__ldcg(b.spill + t) - largest), p.sum);
      if (b.in_shared) b.s.scores[t] = weight;
      p.largest = fmaxf(p.largest, weight);
    }
    p.largest = BlockMax(p.largest, b.s.reduce);
  }
  __syncthreads();  // other warps read the stored weights (kHeadOutput: exponentials) after this barrier
  p.own = largest;
  return p;
}

// The level of the block's token number `local`, at position t; 0 if the token does not exist. In a solo row `local`
// must be the thread's own token.
template <int kSlots, Phase kPhase>
__device__ __forceinline__ int LevelOf(const RowBlock<kSlots, kPhase>& b, const Probabilities& p, float p_scale,
                                       int local, int t) {
  if (local >= b.own_tokens || t >= b.length) return 0;
  float weight = p.own;
  if (!b.solo) {
    weight = b.in_shared ? b.s.scores[t] : b.weight_of(t, Exp(__ldcg(b.spill + t) - p.own), p.sum);
    if (kPhase == Phase::kHeadOutput && b.in_shared) weight = b.weight_of(t, weight, p.sum);
  }
  return BipolarLevel(weight, p_scale, b.av().q_max);
}

// Adds the counts of 256, which the byte-wide rows of LookUpWord cannot hold, to top_sum, for p v of the stage that
// begins at the block's token `first`. level: the level of this thread's token in the stage.
template <int kSlots, Phase kPhase>
__device__ __forceinline__ void AddTopValues(const RowBlock<kSlots, kPhase>& b, int first, int level,
                                             int32_t (&top_sum)[kSlots]) {
#pragma unroll 1
  for (int g = 0; g < kChunkGroups; ++g) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes |= static_cast<uint32_t>(__shfl_sync(0xffffffffu, level, 4 * g + i)) << (8 * i);
    }
    const uint32_t tops = TopBytes(b.av(), codes);
    if (tops == 0) continue;
    const int of = b.token_of(first + g * kTurnTokens + b.warp * kGroupTokens);
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int dim = ValueWords<kSlots>::Dim(b.lane, j);
      if (dim < b.head_dim) top_sum[j] += TopCorrection(b.av(), tops, b.value_word(of, dim), 0);
    }
  }
}

// Computes p v over this block's tokens: each warp writes its own sums to s.parts [warp][head_dim]. Contains no block
// barrier.
template <int kSlots, Phase kPhase, int kBlocks>
__device__ __forceinline__ void Values(const RowBlock<kSlots, kPhase>& b, const Probabilities& p, float p_scale,
                                       ValueWords<kSlots> (&v_words)[Density<kSlots, kBlocks>::kValueGroups]) {
  constexpr bool kCrowded = Density<kSlots, kBlocks>::kCrowded;
  constexpr int kValueGroups = Density<kSlots, kBlocks>::kValueGroups;
  constexpr bool kFresh = IsFresh(kPhase);
  Counts acc[kSlots];
  int32_t top_sum[kSlots] = {};
  uint8_t* const turns = b.s.stage + b.warp * (kGroupTokens * kRowBytes);
  const uint32_t turn_rows = SharedAddress(turns);
  [[maybe_unused]] FreshValues<kSlots> fresh_values;
  if constexpr (kFresh) {
    fresh_values.Find(b.fresh, b.info, b.head_dim, [&](int t) {
      const int tile = t / kTileTokens;
      return (tile & (b.cluster - 1)) == b.rank ? (tile >> b.cluster_shift) * kTileTokens + t % kTileTokens : -1;
    });
  }
#pragma unroll 1
  for (int first = 0; first < b.own_tokens; first += kStageTokens) {
    const int t = b.token_of(first + OwnToken());
    const int level = LevelOf(b, p, p_scale, first + OwnToken(), t);
    const int place = TablePlace(b.av(), t, level);
    const unsigned used = __ballot_sync(0xffffffffu, level != 0);  // a level of 0 has no counts
#pragma unroll kCrowded ? 1 : 8
    for (int group = 0; group < kChunkGroups; group += kValueGroups) {
      const unsigned groups = used >> (4 * group);
      if (groups == 0) break;
      RowCopies<kValueGroups> rows;
      rows.Load(b.av(), [&](int i) { return __shfl_sync(0xffffffffu, place, 4 * (group + i) + b.lane / 8); });
      if constexpr (kCrowded) b.LoadValues(first / kTurnTokens + group, v_words);
      __syncwarp();  // all lanes have looked up the previous rows, which Store overwrites
      rows.template Store<kTurnTokens>(b.av(), turns + group * (kTurnTokens * kRowBytes));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kValueGroups; ++i) {
        if ((groups >> 4 * i & 15) == 0) continue;
        if constexpr (kFresh) {
          if (fresh_values.group == first / kTurnTokens + group + i) fresh_values.Take(v_words[i]);
        }
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          LookUpWord<0>(v_words[i].word[j], 0, turn_rows + (group + i) * (kTurnTokens * kRowBytes), acc[j]);
        }
      }
    }
    if (b.av().top_is_256) AddTopValues(b, first, level, top_sum);
    if (!kCrowded && first + kStageTokens < b.own_tokens) b.LoadValues((first + kStageTokens) / kTurnTokens, v_words);
  }
#pragma unroll
  for (int j = 0; j < kSlots; j += ValueWords<kSlots>::kVector) {
    const int dim = ValueWords<kSlots>::Dim(b.lane, j);
    if (dim >= b.head_dim) continue;
    int32_t* const to = b.s.parts + b.warp * b.head_dim + dim;
    const auto count = [&](int i) { return acc[j + i].Sum() + top_sum[j + i]; };
    if constexpr (ValueWords<kSlots>::kVector == 4) {
      *reinterpret_cast<int4*>(to) = make_int4(count(0), count(1), count(2), count(3));
    } else {
#pragma unroll
      for (int i = 0; i < ValueWords<kSlots>::kVector; ++i) to[i] = count(i);
    }
  }
}

// Adds the sums of all warps and of all blocks of the cluster; block 0 writes the output [head_dim], and posts it in
// kPosted.
template <int kSlots, Phase kPhase>
__device__ __forceinline__ void WriteOutput(const RowBlock<kSlots, kPhase>& b, float p_scale) {
  __syncthreads();
  int32_t total = 0;
  if (b.tid < b.head_dim) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += b.s.parts[w * b.head_dim + b.tid];
    if (b.rank != 0) Cluster::At(b.s.gather, 0)[b.rank * b.head_dim + b.tid] = total;
  }
  if (b.cluster > 1) Cluster::Sync();
  if (b.rank != 0 || b.tid >= b.head_dim) return;
#pragma unroll 1
  for (int r = 1; r < b.cluster; ++r) total += b.s.gather[r * b.head_dim + b.tid];
  float scale = p_scale;
  if constexpr (!IsPerToken(kPhase)) {
    const int64_t channel = (static_cast<int64_t>(b.info.sequence) * b.kv.num_kv_heads + b.kv_head) * b.head_dim;
    scale = p_scale * b.args.window.v_channels[channel + b.tid];
  }
  const float y = (static_cast<float>(total) * b.av().gain) * scale;
  b.a.out[b.row * b.a.out_stride + static_cast<int64_t>(b.head) * b.head_dim + b.tid] = y;
  if constexpr (kPhase == Phase::kPosted) {
    PostOutput(b.args.posted.out, b.args.peers, b.head * b.head_dim + b.tid, y);
  }
}

}  // namespace stoch::cuda::attention_row
