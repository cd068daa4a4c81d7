// SPDX-License-Identifier: Apache-2.0
// Dilated SC attention of single rows: a cluster of blocks per row and query head, which looks only at admitted
// positions.
//
// Counts come from count-table rows in shared memory, as in row.cu. The positions that a pair (segment, dilation)
// admits are `dilation` apart, so in q k a lane takes one position with all its dimensions. Scores are indexed by
// position, from a multiple of kRowLanes on, and are -inf at positions that no pair admits: thread j then holds lane j
// of the softmax sum, and positions that are not admitted add 0. p v takes words of four positions and skips words
// whose levels are all 0.
#include <algorithm>
#include <bit>

#include "kernels/cuda/attention/dilated.cuh"
#include "kernels/cuda/attention/row_args.cuh"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace attention_dilated {
namespace {

using attention_row::kThreads;
using attention_row::kWarps;
using attention_row::RowArgs;
using attention_row::SharedLayout;

// Groups of four positions that each warp takes out of kRowLanes positions.
constexpr int kStageGroups = kRowLanes / kTurnTokens;
// Words of a key (four dimensions each) that are loaded before the first is looked up.
constexpr int kKeyBatch = 8;
// Groups of four positions whose values are loaded before the first is looked up.
constexpr int kValueGroups = 2;

struct DilatedArgs {
  RowArgs row;
  DilatedPairs pairs;
};

// The score of a position that is not admitted: -inf.
__device__ __forceinline__ float Nothing() { return BitsToFloat(0xff800000u); }

// A thread's state: the row and query head that its cluster works on, and the addresses of their data.
struct Block {
  const RowArgs& args;
  const AttentionArgs& a;
  const KvView& kv;
  const AdmittedRow& admitted;
  SharedLayout s;
  // Scores of the row in device memory [span], used if in_shared is false.
  float* spill;
  const int32_t* pages;
  int tid, lane, warp;
  // Index of the block in its cluster, and the number of blocks of the cluster.
  int rank, cluster;
  int head, kv_head, row, head_dim, q_words;
  int position;
  int origin;  // position of the first score, a multiple of kRowLanes
  int span;    // number of scores, up to the row's own position
  // Whether the scores fit in shared memory.
  bool in_shared;

  __device__ __forceinline__ int page_of(int t) const { return __ldg(pages + (t >> kv.page_shift)); }
  __device__ __forceinline__ int slot_of(int t) const { return t & (kv.page_tokens - 1); }
  __device__ __forceinline__ float kept(int i) const { return in_shared ? s.scores[i] : __ldcg(spill + i); }
  // exp(score - largest), times the number of pairs that admit position origin + i; 0 if no pair admits the position.
  __device__ __forceinline__ float exponential(int i, float score, float largest) const {
    if (score == Nothing()) return 0.0f;
    return static_cast<float>(admitted.Times(origin + i)) * Exp(score - largest);
  }
  // The weight, which is the number to quantize: probability e / sum times the value's scale.
  __device__ __forceinline__ float weight(int i, float e, float sum) const {
    if (e == 0.0f) return 0.0f;
    const int t = origin + i;
    return (e / sum) * kv.v_scales[kv.Scale(page_of(t), kv_head, slot_of(t))];
  }
};

// Stages the count-table rows of the query's levels (each warp those of its 4 kSlots dimensions), copies the query's
// codes to q_words, and sets all scores to -inf. Called by all threads of the block; the caller puts a barrier after
// it.
template <int kSlots>
__device__ __forceinline__ void Prepare(const Block& b, const uint32_t* codes, uint32_t* q_words) {
  RowCopies<kSlots> rows;
  rows.Load(b.args.qk, [&](int i) {
    const int word = b.warp * kSlots + i;
    const uint32_t code = word < b.q_words ? codes[word] : 0;
    return TablePlace(b.args.qk, word * 4 + b.lane / 8, static_cast<int>(code >> b.lane / 8 * 8 & 0x7f));
  });
  if (b.tid < b.q_words) q_words[b.tid] = codes[b.tid];
  rows.template Store<kGroupTokens>(b.args.qk, b.s.stage + b.warp * (kSlots * 4 * kRowBytes));
  if (b.in_shared) {
    for (int i = b.tid; i < b.span; i += kThreads) b.s.scores[i] = Nothing();
  } else {
    for (int i = b.rank * kThreads + b.tid; i < b.span; i += b.cluster * kThreads) __stcg(b.spill + i, Nothing());
  }
}

// Returns the signed sum of counts, over all dimensions, of the query and the key at position t. rows: shared address
// of the staged count-table rows.
__device__ __forceinline__ int32_t CountKey(const Block& b, const uint32_t* q_words, uint32_t rows, int t) {
  const uint32_t* keys = b.kv.k_words + b.kv.KWord(b.page_of(t), b.kv_head, 0, b.slot_of(t));
  Counts counts;
  int32_t top_sum = 0;
  for (int begin = 0; begin < b.q_words; begin += kKeyBatch) {
    uint32_t k[kKeyBatch];
#pragma unroll
    for (int i = 0; i < kKeyBatch; ++i) {
      k[i] = begin + i < b.q_words ? __ldcg(keys + b.kv.KeyWord(begin + i)) : 0;
    }
#pragma unroll
    for (int i = 0; i < kKeyBatch; ++i) {
      if (begin + i >= b.q_words) break;
      const uint32_t q = q_words[begin + i];
      LookUpWord<0>(k[i], q, rows + static_cast<uint32_t>((begin + i) * 4 * kRowBytes), counts);
      const uint32_t tops = TopBytes(b.args.qk, q);
      if (tops != 0) top_sum += TopCorrection(b.args.qk, tops, k[i], q);
    }
  }
  return counts.Sum() + top_sum;
}

// Computes the score of every admitted position once and writes it to the shared memory of every block of the cluster,
// or to device memory. Called by all threads; the caller puts a cluster barrier after it.
__device__ __forceinline__ void Scores(const Block& b, const uint32_t* q_words, float q_scale) {
  const uint32_t rows = SharedAddress(b.s.stage);
  for (int pair = 0; pair < b.admitted.count; ++pair) {
    const int size = b.admitted.Size(pair, b.position);
    for (int i = (b.rank * kWarps + b.warp) * 32 + b.lane; i - b.lane < size; i += b.cluster * kThreads) {
      const int t = b.admitted.first[pair] + min(i, size - 1) * b.admitted.dilation[pair];
      const bool own = i < size && !b.admitted.IsTaken(pair, t);
      if (__ballot_sync(0xffffffffu, own) == 0) continue;
      const int32_t sum = CountKey(b, q_words, rows, t);
      if (!own) continue;
      const float k_scale = b.kv.k_scales[b.kv.Scale(b.page_of(t), b.kv_head, b.slot_of(t))];
      const float score = BipolarProduct(sum, b.args.qk.gain, q_scale, k_scale) * b.a.inv_sqrt;
      if (b.in_shared) {
        for (int r = 0; r < b.cluster; ++r) Cluster::At(b.s.scores, r)[t - b.origin] = score;
      } else {
        __stcg(b.spill + (t - b.origin), score);
      }
    }
  }
}

// Results of the softmax of a row. Every block of the cluster computes them over the whole row, with equal bits.
struct Probabilities {
  float largest;        // the largest score; -inf: no position is admitted
  float sum = 0.0f;     // the sum of the exponentials
  float weight = 0.0f;  // the largest weight
};

// Softmax of the row by all threads of the block. Scores in shared memory are replaced by weights; scores in device
// memory stay, and later steps compute the weight from the score again.
__device__ __forceinline__ Probabilities Softmax(const Block& b) {
  Probabilities p;
  p.largest = Nothing();
#pragma unroll 1
  for (int i = b.tid; i < b.span; i += kThreads) p.largest = fmaxf(p.largest, b.kept(i));
  p.largest = BlockMax(p.largest, b.s.reduce);
  if (p.largest == Nothing()) return p;
#pragma unroll 1
  for (int i = b.tid; i < b.span; i += kThreads) {
    const float e = b.exponential(i, b.kept(i), p.largest);
    if (b.in_shared) b.s.scores[i] = e;
    p.sum = p.sum + e;
  }
  p.sum = BlockFoldLanes(p.sum, b.s.reduce);
#pragma unroll 1
  for (int i = b.tid; i < b.span; i += kThreads) {
    const float e = b.in_shared ? b.s.scores[i] : b.exponential(i, __ldcg(b.spill + i), p.largest);
    const float weight = b.weight(i, e, p.sum);
    if (b.in_shared) b.s.scores[i] = weight;
    p.weight = fmaxf(p.weight, weight);
  }
  p.weight = BlockMax(p.weight, b.s.reduce);
  // Other warps read the weights after this barrier.
  __syncthreads();
  return p;
}

// p v over the block's share of the positions (every cluster-th run of kRowLanes positions): each warp writes its sums
// of counts to s.parts [warp][head_dim].
template <int kSlots>
__device__ __forceinline__ void Values(const Block& b, const Probabilities& p, float p_scale) {
  const ScTables& av = b.args.av;
  Counts acc[kSlots];
  int32_t top_sum[kSlots] = {};
  uint8_t* const stage = b.s.stage + b.warp * (kValueGroups * kGroupTokens * kRowBytes);
  const uint32_t rows = SharedAddress(stage);
#pragma unroll 1
  for (int first = b.rank * kRowLanes; first < b.span; first += b.cluster * kRowLanes) {
    const int i = first + OwnToken();
    int level = 0;
    if (i < b.span) {
      const float weight =
          b.in_shared ? b.s.scores[i] : b.weight(i, b.exponential(i, __ldcg(b.spill + i), p.largest), p.sum);
      level = BipolarLevel(weight, p_scale, av.q_max);
    }
    const int place = TablePlace(av, b.origin + i, level);
    const unsigned used = __ballot_sync(0xffffffffu, level != 0);  // a level of 0 has no counts
#pragma unroll 1
    for (int group = 0; group < kStageGroups; group += kValueGroups) {
      const unsigned groups = used >> (4 * group) & ((1u << 4 * kValueGroups) - 1);
      if (groups == 0) continue;
      RowCopies<kValueGroups> copies;
      copies.Load(av, [&](int g) { return __shfl_sync(0xffffffffu, place, 4 * (group + g) + b.lane / 8); });
      ValueWords<kSlots> v[kValueGroups];
#pragma unroll
      for (int g = 0; g < kValueGroups; ++g) {
        const int t = min(b.origin + first + (group + g) * kTurnTokens + b.warp * kGroupTokens, b.position);
        const uint32_t* from =
            b.kv.v_words + b.kv.VWord(b.page_of(t), b.kv_head, b.slot_of(t) >> 2, ValueWords<kSlots>::Dim(b.lane, 0));
        if ((groups >> 4 * g & 15) != 0) v[g].Load(reinterpret_cast<const uint8_t*>(from), b.lane, b.kv);
      }
      // Store overwrites the previous rows, so all lanes must have looked them up.
      __syncwarp();
      copies.template Store<kGroupTokens>(av, stage);
      __syncwarp();
#pragma unroll
      for (int g = 0; g < kValueGroups; ++g) {
        if ((groups >> 4 * g & 15) == 0) continue;
        uint32_t codes = 0;
#pragma unroll
        for (int j = 0; j < kGroupTokens; ++j) {
          codes |= static_cast<uint32_t>(__shfl_sync(0xffffffffu, level, 4 * (group + g) + j)) << 8 * j;
        }
        const uint32_t tops = TopBytes(av, codes);
#pragma unroll
        for (int j = 0; j < kSlots; ++j) {
          if (ValueWords<kSlots>::Dim(b.lane, j) >= b.head_dim) continue;
          LookUpWord<0>(v[g].word[j], 0, rows + static_cast<uint32_t>(g * kGroupTokens * kRowBytes), acc[j]);
          if (tops != 0) top_sum[j] += TopCorrection(av, tops, v[g].word[j], 0);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int dim = ValueWords<kSlots>::Dim(b.lane, j);
    if (dim < b.head_dim) b.s.parts[b.warp * b.head_dim + dim] = acc[j].Sum() + top_sum[j];
  }
}

// Adds the sums of all warps and of all blocks of the cluster; block 0 writes the output [head_dim].
__device__ __forceinline__ void WriteOutput(const Block& b, float p_scale) {
  __syncthreads();
  int32_t total = 0;
  if (b.tid < b.head_dim) {
    for (int w = 0; w < kWarps; ++w) total += b.s.parts[w * b.head_dim + b.tid];
    if (b.rank != 0) Cluster::At(b.s.gather, 0)[b.rank * b.head_dim + b.tid] = total;
  }
  if (b.cluster > 1) Cluster::Sync();
  if (b.rank != 0 || b.tid >= b.head_dim) return;
  for (int r = 1; r < b.cluster; ++r) total += b.s.gather[r * b.head_dim + b.tid];
  b.a.out[b.row * b.a.out_stride + static_cast<int64_t>(b.head) * b.head_dim + b.tid] =
      (static_cast<float>(total) * b.args.av.gain) * p_scale;
}

// Computes dilated SC attention of one row and query head per cluster of blocks: gridDim is (cluster, num_heads, rows).
// kSlots: head_dim <= 32 kSlots; a lane takes kSlots dimensions in p v.
template <int kSlots>
__global__ void __launch_bounds__(kThreads, 2) DilatedRowKernel(const DilatedArgs args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  __shared__ AdmittedRow admitted;
  __shared__ uint32_t q_words[kSlots * kWarps];
  StartNext();
  WaitForPrevious();
  const RowArgs& row = args.row;
  Block b{row, row.attention, row.attention.kv, admitted};
  b.tid = static_cast<int>(threadIdx.x);
  b.lane = b.tid & 31;
  b.warp = __shfl_sync(0xffffffffu, b.tid >> 5, 0);
  b.rank = Cluster::Rank();
  b.cluster = row.cluster;
  b.head = static_cast<int>(blockIdx.y);
  b.kv_head = b.head / b.a.group;
  const int grid_row = static_cast<int>(blockIdx.z);
  b.row = row.row_list != nullptr ? row.row_list[grid_row] : row.row_offset + grid_row;
  b.head_dim = b.kv.head_dim;
  b.q_words = b.head_dim / 4;
  const PassRow info = b.a.pass.rows[b.row];
  b.position = info.position;
  b.pages = b.a.pass.pages + static_cast<int64_t>(info.sequence) * b.a.pass.max_pages;
  b.s = attention_row::MakeLayout(shared_memory, b.head_dim, row.cluster);
  b.spill = row.spill + (static_cast<int64_t>(grid_row) * b.a.num_heads + b.head) * row.spill_stride;
  admitted.Find(args.pairs, b.head, b.position, b.a.window > 0 ? max(b.position + 1 - b.a.window, 0) : 0);
  __syncthreads();
  b.origin = min(admitted.Begin(), b.position) / kRowLanes * kRowLanes;
  b.span = b.position + 1 - b.origin;
  b.in_shared = b.span <= row.shared_scores;

  const int64_t vector = static_cast<int64_t>(b.row) * b.a.num_heads + b.head;
  Prepare<kSlots>(b, row.q.words + vector * b.q_words, q_words);
  Cluster::Sync();
  Scores(b, q_words, row.q.scales[vector]);
  Cluster::Sync();
  const Probabilities p = Softmax(b);
  if (p.largest == Nothing()) {
    if (b.rank == 0 && b.tid < b.head_dim) {
      b.a.out[b.row * b.a.out_stride + static_cast<int64_t>(b.head) * b.head_dim + b.tid] = 0.0f;
    }
    return;
  }
  if (b.tid == 0 && !(IsFinite(p.sum) && IsFinite(p.weight))) b.a.reporter.Report();
  const float p_scale = BipolarScale(p.weight, row.av.q_max);
  Values<kSlots>(b, p, p_scale);
  WriteOutput(b, p_scale);
}

template <int kSlots>
void Launch(DeviceContext& ctx, const DilatedArgs& args, int rows, int64_t shared_bytes) {
  const dim3 grid(static_cast<unsigned>(args.row.cluster), static_cast<unsigned>(args.row.attention.num_heads),
                  static_cast<unsigned>(rows));
  LaunchClusters(ctx, &DilatedRowKernel<kSlots>, grid, kThreads, static_cast<size_t>(shared_bytes), args);
}

}  // namespace
}  // namespace attention_dilated

void LaunchDilatedRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape,
                       const ScOperands& operands, const DilatedPairs& pairs, const RowSet& rows,
                       const ScoreSpill& spill) {
  attention_dilated::DilatedArgs launch;
  launch.pairs = pairs;
  launch.row = {args, operands, spill};
  const int64_t span = DilatedSpan(LongestSegment(pairs), rows.max_length);
  // A dilated row needs only `span` scores, fewer than the memory has for rows that see whole contexts, so more rows
  // fit in a launch.
  const int64_t stride = (span + kRowLanes - 1) / kRowLanes * kRowLanes;
  int rows_at_once = spill.rows_at_once;
  if (spill.stride > stride) {
    rows_at_once =
        static_cast<int>(std::min<int64_t>(ScoreSpill{}.rows_at_once, spill.rows_at_once * spill.stride / stride));
  }
  launch.row.spill_stride = std::min(stride, spill.stride);
  for (int first = 0; first < rows.count; first += rows_at_once) {
    const int count = std::min(rows_at_once, rows.count - first);
    const ScRowPlan plan = PlanScRows(ctx.traits, shape, count, span);
    launch.row.Cut(plan, rows, first);
    DispatchSlots(args.kv.head_dim,
                  [&]<int kSlots>() { attention_dilated::Launch<kSlots>(ctx, launch, count, plan.shared_bytes); });
  }
}

}  // namespace stoch::cuda
