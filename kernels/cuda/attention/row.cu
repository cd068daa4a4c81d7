// SPDX-License-Identifier: Apache-2.0
// SC attention of single rows: a cluster of blocks per row and query head, with count-table rows in shared memory.
//
// For a fixed query, count[mask(d)][|q_d|][.] is one row of at most 128 one-byte counts per dimension d: one word in
// each of the 32 shared-memory banks, so 32 lanes that look up the codes of 32 tokens in one row have no bank
// conflicts. p v works alike, with one row per token and lanes over dimensions.
//
// In a short context each warp runs about two thousand instructions once, so instructions and the waits between them
// are the cost: keys and values are loaded 16 bytes at a time, a warp stages the rows that it looks up itself, and a
// thread keeps its token from the score to the code of its probability.
//
// Block r of a cluster of n blocks takes tiles r, r + n, ... of 128 tokens. Counts are integers, so splitting their sum
// is exact. Every block computes the softmax over the whole row, which costs less than another cluster barrier. A short
// context is the work of one block; the other blocks exit at once, so that a graph recorded for long contexts does not
// make short ones wait at cluster barriers.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/attention/append.cuh"
#include "kernels/cuda/attention/row_parts.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace attention_row {
namespace {

template <Phase kPhase>
using ArgsOf = std::conditional_t<IsMixed(kPhase), MixedRowArgs, RowArgs>;

// Finishes a row after the softmax: picks the stream length of the probabilities (mixed phases), quantizes them,
// computes p v and writes the output. Called by all threads of the block. In kHeadMax it only updates the largest
// probability of the head in args.window.p_heads. av_tables: [slots] count tables of p v at each stream length, in
// shared memory. q_vector: row * num_heads + head.
template <int kSlots, Phase kPhase, int kBlocks, int kValueGroups>
__device__ __forceinline__ void FinishRow(const ArgsOf<kPhase>& args, RowBlock<kSlots, kPhase>& b, Probabilities p,
                                          const ByteTable* av_tables, int64_t q_vector,
                                          ValueWords<kSlots> (&v_words)[kValueGroups]) {
  using Block = RowBlock<kSlots, kPhase>;
  const int64_t window_head = static_cast<int64_t>(b.info.sequence) * b.a.num_heads + b.head;
  if constexpr (kPhase == Phase::kHeadOutput) p.largest = args.window.p_heads[window_head];
  if constexpr (Block::kMixed) {
    const LengthView& of_p = args.av_lengths;
    const uint8_t slot = of_p.has_rule ? SlotOfLevel(of_p, FixedLevel(of_p, p.metric), 0) : uint8_t{0};
    if (b.tid == 0 && b.rank == 0 && args.p_slots != nullptr) args.p_slots[q_vector] = slot;
    b.own_av = Block::TablesOf(args.av, av_tables[slot]);
  }
  if constexpr (kPhase == Phase::kHeadMax) {
    if (b.tid == 0 && b.rank == 0) {
      // A probability is not negative, so its float bits are ordered as integers.
      atomicMax(reinterpret_cast<int*>(args.window.p_heads + window_head), static_cast<int>(FloatToBits(p.largest)));
    }
  } else {
    const float p_scale = BipolarScale(p.largest, args.av.q_max);
    Values<kSlots, kPhase, kBlocks>(b, p, p_scale, v_words);
    if constexpr (kPhase == Phase::kPosted) {
      if (b.rank == 0) ClearRow(args.posted.out, b.head, b.a.num_heads);
    }
    WriteOutput(b, p_scale);
  }
}

// Computes SC attention of one row and query head per cluster of blocks: gridDim is (cluster, num_heads, rows). kSlots:
// words of four query dimensions that each warp takes (head_dim <= 32 kSlots). kBlocks: blocks per SM that the
// registers must allow.
template <int kSlots, Phase kPhase, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) ScRowKernel(const ArgsOf<kPhase> args) {
  using Block = RowBlock<kSlots, kPhase>;
  constexpr bool kCrowded = Density<kSlots, kBlocks>::kCrowded;
  constexpr int kBatchTiles = Density<kSlots, kBlocks>::kBatchTiles;
  constexpr bool kFresh = Block::kFresh;
  constexpr bool kMixed = Block::kMixed;
  extern __shared__ __align__(256) uint8_t shared_memory[];
  __shared__ int32_t shared_pages[kMaxSharedPages];
  __shared__ typename Block::Fresh fresh;
  __shared__ ByteTable av_tables[kMixed ? kMaxByteTables : 1];
  __shared__ ByteTable qk_table;  // count table of the query at its stream length, if this kernel quantizes the query
  constexpr bool kPosted = kPhase == Phase::kPosted;
  if constexpr (!kPosted) StartNext();
  Block b(args, fresh, shared_pages);
  // The rule is in the memory of b.s.parts, which is free until the first partial counts are written.
  auto& rule = *reinterpret_cast<QueryRule*>(shared_memory);
  if constexpr (kMixed && kFresh) {
    if (b.warp == 0) rule.Load(args.qk_lengths, b.lane);
  }
  if constexpr (kMixed) {
    if (b.tid < args.av_lengths.slots) av_tables[b.tid] = args.av_lengths.bytes[b.tid];
  }
  if constexpr (!kPosted) {
    WaitForPrevious();  // the previous kernel writes the row that is read below
    b.a.reporter.Begin();
  }
  if (b.rank != 0 && b.solo) return;
  b.Cut(shared_memory);
  if (b.cluster > 1) Cluster::Arrive();

  // ---- the query, and the rows of the pass if this kernel appends them (kFresh)
  const int64_t q_vector = static_cast<int64_t>(b.row) * b.a.num_heads + b.head;
  Query<kSlots> q;
  q.codes = args.q.words + q_vector * b.q_words;
  if constexpr (kFresh) {
    QuantizeFresh<kWarps, (kSlots + 1) / 2, kPosted>(b.a, args.norm, args.posted, args.qk.q_max, args.av.q_max, b.info,
                                                     b.head, b.kv_head, fresh, [&](const auto& x) {
                                                       if constexpr (kMixed) {
                                                         const int slot =
                                                             rule.SlotOf(args.qk_lengths, x, b.head_dim / 2, b.lane);
                                                         if (b.lane == 0) qk_table = rule.tables[slot];
                                                       }
                                                     });
    q.codes = fresh.q_words;
  } else {
    q.scale = args.q.scales[q_vector];
  }
  if constexpr (kMixed && !kFresh) b.own_qk = Block::TablesOf(args.qk, args.q_tables[q_vector]);
  __syncthreads();
  if constexpr (kPosted) {
    WaitForPrevious();
    b.a.reporter.Begin();
  }
  if constexpr (kMixed && kFresh) b.own_qk = Block::TablesOf(args.qk, qk_table);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int w = b.warp * kSlots + i;
    q.word[i] = w < b.q_words ? q.codes[w] : 0;
  }
  RowCopies<kSlots> q_rows;
  q_rows.Load(b.qk(), [&](int i) {
    return TablePlace(b.qk(), (b.warp * kSlots + i) * 4 + b.lane / 8, q.word[i] >> b.lane / 8 * 8 & 0x7f);
  });
  uint4 k_words[kBatchTiles][kSlots];
#pragma unroll
  for (int i = 0; i < kBatchTiles; ++i) b.LoadKeys(i, k_words[i]);
  if constexpr (kFresh) {
    q.scale = fresh.q_scale;
    if (b.rank == 0 && b.head == b.kv_head * b.a.group) {
      AppendFresh(b.kv, b.info, b.kv_head, b.page_of(b.info.position), fresh);
    }
  }
  uint8_t* const slice = b.s.stage + b.warp * (kSlots * 4 * kRowBytes);
  q_rows.template Store<kGroupTokens>(b.qk(), slice);
  q.rows = SharedAddress(slice);
  // The scales are needed after the counts: loads return in order, so the scales are loaded after keys and count rows.
  b.LoadEarlyScales();
  ValueWords<kSlots> v_words[Density<kSlots, kBlocks>::kValueGroups];
  if constexpr (kPhase != Phase::kHeadMax && !kCrowded) b.LoadValues(0, v_words);
  q.tops = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) q.tops |= TopBytes(b.qk(), q.word[j]);
  __syncwarp();
  if (b.cluster > 1) Cluster::Wait();  // every block of the cluster runs, so its shared memory may be written

  const float score = Scores(b, q, k_words);
  // The next kernel may start only now: what it prefetches must not come before the keys and values of this one.
  if constexpr (kPosted) StartNext();
  const Probabilities p = b.solo ? SoloSoftmax(b, score) : DeepSoftmax(b);
  if (b.tid == 0 && !IsFinite(p.sum)) b.a.reporter.Report();
  FinishRow<kSlots, kPhase, kBlocks>(args, b, p, av_tables, q_vector, v_words);
}

static_assert(kFixedBytes + kStageRows * kRowBytes == kScRowFixedBytes);
static_assert(sizeof(FreshRows) + kMaxSharedPages * sizeof(int32_t) + (kMaxByteTables + 1) * sizeof(ByteTable) <=
              kScRowStaticBytes);
static_assert(sizeof(QueryRule) <= kPartsCount * sizeof(int32_t));

template <int kSlots, Phase kPhase, int kBlocks, typename Args>
void LaunchKernel(DeviceContext& ctx, const Args& args, int rows, size_t shared) {
  const dim3 grid(static_cast<unsigned>(args.cluster), static_cast<unsigned>(args.attention.num_heads),
                  static_cast<unsigned>(rows));
  LaunchClusters(ctx, &ScRowKernel<kSlots, kPhase, kBlocks>, grid, kThreads, shared, args);
}

template <int kSlots, Phase kPhase, typename Args>
void LaunchDensity(DeviceContext& ctx, const ScRowPlan& plan, const Args& args, int rows) {
  const auto shared = static_cast<size_t>(plan.shared_bytes);
  if constexpr (IsPerToken(kPhase) && kPhase != Phase::kPosted) {
    if (plan.blocks_per_sm == CrowdedBlocks(kSlots)) {
      return LaunchKernel<kSlots, kPhase, CrowdedBlocks(kSlots)>(ctx, args, rows, shared);
    }
    if (plan.blocks_per_sm == 2) return LaunchKernel<kSlots, kPhase, 2>(ctx, args, rows, shared);
  }
  LaunchKernel<kSlots, kPhase, 1>(ctx, args, rows, shared);
}

// Launches the kernel for all of `rows`, at most rows_at_once rows a launch: the score spill has memory for so many.
template <Phase kPhase, typename Args>
void LaunchRows(DeviceContext& ctx, const AttentionShape& shape, Args args, const RowSet& rows, int rows_at_once) {
  for (int first = 0; first < rows.count; first += rows_at_once) {
    const int count = std::min(rows_at_once, rows.count - first);
    const ScRowPlan plan = PlanScRows(ctx.traits, shape, count, rows.max_length);
    args.Cut(plan, rows, first);
    DispatchSlots(args.attention.kv.head_dim,
                  [&]<int kSlots>() { LaunchDensity<kSlots, kPhase>(ctx, plan, args, count); });
  }
}

}  // namespace
}  // namespace attention_row

void LaunchScRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                  const ScOperands& operands, const RowSet& rows, const ScoreSpill& spill) {
  using attention_row::Phase;
  using attention_row::RowArgs;
  const RowArgs row_args(args, operands, spill);
  const auto launch = [&]<Phase kPhase>() {
    attention_row::LaunchRows<kPhase>(ctx, shape, row_args, rows, spill.rows_at_once);
  };
  if (route == AttentionRoute::kScRows) return launch.operator()<Phase::kPerToken>();
  if (route == AttentionRoute::kScFreshRows) {
    if (operands.posted.q == nullptr) return launch.operator()<Phase::kFresh>();
    return launch.operator()<Phase::kPosted>();
  }
  STOCH_CHECK(route == AttentionRoute::kScWindowRows);
  if (shape.mode == AttentionMode::kPerRow) return launch.operator()<Phase::kPerRow>();
  launch.operator()<Phase::kHeadMax>();
  launch.operator()<Phase::kHeadOutput>();
}

void LaunchMixedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                     const ScOperands& operands, const RowLengths& lengths, const RowSet& rows,
                     const ScoreSpill& spill) {
  attention_row::MixedRowArgs row_args(attention_row::RowArgs(args, operands, spill));
  row_args.q_tables = lengths.q_tables;
  row_args.qk_lengths = lengths.qk;
  row_args.av_lengths = lengths.av;
  row_args.p_slots = lengths.p_slots;
  if (route == AttentionRoute::kMixedFresh) {
    attention_row::LaunchRows<attention_row::Phase::kMixedFresh>(ctx, shape, row_args, rows, spill.rows_at_once);
  } else {
    attention_row::LaunchRows<attention_row::Phase::kMixed>(ctx, shape, row_args, rows, spill.rows_at_once);
  }
}

}  // namespace stoch::cuda
