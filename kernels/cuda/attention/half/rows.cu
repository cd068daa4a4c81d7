// SPDX-License-Identifier: Apache-2.0
// fp16 baseline, single rows: flash decoding over a half cache, the context split over a cluster of blocks.
//
// A block serves up to four query heads of one KV head, so keys and values are read once for all of them. kLanes lanes
// hold one token (16 bytes each); every warp keeps its own running maximum, and warps are merged at the end. A small
// pass needs no append kernel: as in row_fresh.cuh every block rotates and rounds the pass's own positions
// for itself, which leaves the loads of older ones free to start before the previous kernel has ended. A short context
// is one block's work, however large the cluster that a graph was recorded with.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/half/parts.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace attention_half {
namespace {

struct RowArgs {
  AttentionArgs attention;
  const int32_t* row_list = nullptr;
  int32_t row_offset = 0;
  int32_t gangs = 1;         // clusters of a row
  float* records = nullptr;  // [grid rows][num_heads][gangs][head_dim + 2]: weighted values, largest, sum
};

// Calls fn(head, dim) for every pair of dims of the block's heads, spread over its threads.
template <int kHeads, int kDims, typename Fn>
__device__ __forceinline__ void ForPairs(const Fn& fn) {
  constexpr int kPairs = kDims / 2;
#pragma unroll
  for (int first = 0; first < kHeads * kPairs; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    if (i < kHeads * kPairs) fn(i / kPairs, i % kPairs * 2);
  }
}

__device__ __forceinline__ void WriteOutput(const AttentionArgs& a, int row, int head, int dim, const Merged& merged) {
  const float scale = __fdividef(1.0f, merged.stats.y);
  float* to = a.out + row * a.out_stride + head * a.kv.head_dim + dim;
  to[0] = merged.value.x * scale;
  to[1] = merged.value.y * scale;
}

// Where a gang's record of a head starts.
__device__ __forceinline__ float* RecordAt(const RowArgs& args, int grid_row, int head, int gang) {
  const int64_t index = (static_cast<int64_t>(grid_row) * args.attention.num_heads + head) * args.gangs + gang;
  return args.records + index * (args.attention.kv.head_dim + 2);
}

// The block's queries of the lane's dimensions, in units of log2.
template <int kHeads, int kDims>
__device__ __forceinline__ void LoadQueries(const AttentionArgs& a, int row, int first_head, int heads, int dim,
                                            float (&q)[kHeads][kVector]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      q[h][i] = dim < a.kv.head_dim && h < heads
                    ? a.q[row * a.q_stride + (first_head + h) * a.kv.head_dim + dim + i] * (a.inv_sqrt * kLog2E)
                    : 0.0f;
    }
  }
}

// kFresh: for passes of at most kFreshRows rows; rotates and appends them itself.
template <int kLanes, int kHeads, bool kFresh>
__global__ void __launch_bounds__(kThreads, 2) HalfRowKernel(const RowArgs args) {
  using State = Softmax<kLanes, kHeads>;
  constexpr int kGroups = State::kGroups;
  constexpr int kDims = State::kDims;
  extern __shared__ __align__(16) uint8_t shared_memory[];  // rounds, then records of the warps
  using Rounds = attention_half::Rounds<kLanes>;
  using WarpRecords = Records<kHeads, kDims>;
  static_assert(sizeof(WarpRecords) <= Rounds::kBytes);
  auto& of_warps = *reinterpret_cast<WarpRecords*>(shared_memory);
  __shared__ Records<kHeads, kDims> of_blocks;  // in block 0 of the cluster
  __shared__ std::conditional_t<kFresh, FreshRows<kHeads, kDims>, char> fresh;
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int grid_row = static_cast<int>(blockIdx.z);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  const PassRow info = a.pass.rows[row];  // of the pass, which was there before its first kernel
  const int length = info.position + 1;
  const bool solo = length <= kSoloTokens;
  const int rank = Cluster::Rank();
  const int gang = static_cast<int>(blockIdx.x) / Cluster::Size();
  if (solo && (rank != 0 || gang != 0)) return;
  const int cluster = solo ? 1 : Cluster::Size();
  const int gangs = solo ? 1 : args.gangs;
  if (cluster > 1) Cluster::Arrive();

  const int head_blocks = (a.group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / head_blocks;
  const int first_head = kv_head * a.group + static_cast<int>(blockIdx.y) % head_blocks * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * a.group - first_head);
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(info.sequence) * a.pass.max_pages;
  const int dim = lane % kLanes * kVector;
  const bool active = dim < kv.head_dim;
  const int round = gangs * cluster * kWarps * kGroups * kStep;  // tokens of all blocks
  const int slot = (((gang * cluster + rank) * kWarps + warp) * kGroups + lane / kLanes) * kStep;

  // Positions of the pass are taken from `fresh` where they are looked at; here they stand for a position before.
  const int last = kFresh ? max(info.start_position - 1, 0) : length - 1;
  const uint32_t token_vectors = static_cast<uint32_t>(kv.head_dim) / kVector;
  const uint32_t first_vector = (kv_head * token_vectors << kv.page_shift) + (active ? lane % kLanes : 0);
  // A window's first positions; rounds start with that of its first one, others get no weight.
  const int visible = a.window > 0 ? max(length - a.window, 0) : 0;
  const int begin = visible / round * round;
  Rounds rounds(shared_memory, kv, pages, reinterpret_cast<const uint4*>(kv.k_half) + first_vector,
                reinterpret_cast<const uint4*>(kv.v_half) + first_vector, token_vectors, begin + slot, round, last);
  const auto ask_first = [&] {
#pragma unroll
    for (int stage = 0; stage < Rounds::kAhead; ++stage) {
      const bool have = begin + stage * round < length;
      rounds.AskKeys(stage, have);
      rounds.AskValues(stage, have);
    }
  };
  float q[kHeads][kVector];
  if constexpr (kFresh) {
    constexpr int kLineFloats = 32;
    if (tid * kLineFloats < kv.head_dim) PrefetchL2Line(a.rope + info.position * a.rope_stride + tid * kLineFloats);
    if (kv.head_dim + tid < kDims) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) fresh.q[h][kv.head_dim + tid] = 0.0f;
    }
    const int32_t page = pages[info.position >> kv.page_shift];
    ask_first();
    RotateFresh(a, info, kv_head, first_head, heads, fresh);
    __syncthreads();
    if (rank == 0 && gang == 0 && first_head == kv_head * a.group) AppendFresh(kv, info, kv_head, page, fresh);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) q[h][i] = fresh.q[h][dim + i];  // heads that are not there are never read
    }
  } else {
    WaitForPrevious();
    a.reporter.Begin();
    ask_first();
    LoadQueries<kHeads, kDims>(a, row, first_head, heads, dim, q);
  }

  State state;
  const int own_token = slot + State::OwnRound(lane);  // the first of this lane's in a round
  int stage = 0;
  for (int base = begin; base < length; base += round) {
    const int ahead = base + Rounds::kAhead * round;
    // Positions of the pass instead of those loaded from the cache.
    [[maybe_unused]] const auto take_fresh = [&](uint4(&to)[kStep], const auto& own) {
      if (base + round <= info.start_position) return;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const int index = min(base + slot + i, length - 1) - info.start_position;
        if (index >= 0) to[i] = *reinterpret_cast<const uint4*>(&own[index][active ? dim : 0]);
      }
    };
    uint4 vectors[kStep];
    rounds.TakeKeys(stage, vectors);
    if constexpr (kFresh) take_fresh(vectors, fresh.k);
    float scores[State::kScores];
    State::Dots(q, vectors, scores);
    rounds.AskKeys(stage, ahead < length);
    const float scale = state.Weigh(scores, base + own_token, visible, length);
    rounds.TakeValues(stage, vectors);
    if constexpr (kFresh) take_fresh(vectors, fresh.v);
    state.Add(scores, scale, vectors);
    rounds.AskValues(stage, ahead < length);
    stage = stage + 1 == Rounds::kAhead ? 0 : stage + 1;
  }
  WaitForAllCopies();
  __syncthreads();  // records are in the place of the rounds

  // ---- lanes of the warp, warps of the block, blocks of the cluster
  state.Write(of_warps, warp, lane, dim);
  const auto write = [&](int h, int d, const Merged& merged) {
    if (h >= heads || d >= kv.head_dim) return;
    if (gangs == 1) return WriteOutput(a, row, first_head + h, d, merged);
    float* to = RecordAt(args, grid_row, first_head + h, gang);
    *reinterpret_cast<float2*>(to + d) = merged.value;
    if (d == 0) *reinterpret_cast<float2*>(to + kv.head_dim) = merged.stats;
  };
  __syncthreads();
  if (cluster == 1) {
    ForPairs<kHeads, kDims>([&](int h, int d) { write(h, d, Merge(of_warps, kWarps, h, d)); });
    return;
  }
  Cluster::Wait();  // every block runs: its shared memory may be written
  Records<kHeads, kDims>* to = Cluster::At(&of_blocks, 0);
  ForPairs<kHeads, kDims>([&](int h, int d) {
    const Merged merged = Merge(of_warps, kWarps, h, d);
    *reinterpret_cast<float2*>(&to->values[rank][h][d]) = merged.value;
    if (d == 0) to->stats[rank][h] = merged.stats;
  });
  Cluster::Sync();
  if (rank != 0) return;
  ForPairs<kHeads, kDims>([&](int h, int d) { write(h, d, Merge(of_blocks, cluster, h, d)); });
}

// Merges the gangs of a row and head: one block each.
__global__ void MergeGangsKernel(const RowArgs args) {
  const AttentionArgs& a = args.attention;
  StartNext();
  const int head = static_cast<int>(blockIdx.x);
  const int grid_row = static_cast<int>(blockIdx.y);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  WaitForPrevious();
  if (a.pass.rows[row].position + 1 <= kSoloTokens) return;  // written already
  const int d = static_cast<int>(threadIdx.x) * 2;
  if (d >= a.kv.head_dim) return;
  Merged merged{{kLowest, 0.0f}, {0.0f, 0.0f}};
#pragma unroll 8
  for (int g = 0; g < args.gangs; ++g) {
    const float* record = RecordAt(args, grid_row, head, g);
    const float2 value = __ldcg(reinterpret_cast<const float2*>(record + d));
    const float2 stats = __ldcg(reinterpret_cast<const float2*>(record + a.kv.head_dim));
    const float top = fmaxf(merged.stats.x, stats.x);
    const float before = Exp2(merged.stats.x - top);
    const float scale = Exp2(stats.x - top);
    merged.stats = make_float2(top, fmaf(stats.y, scale, merged.stats.y * before));
    merged.value =
        make_float2(fmaf(value.x, scale, merged.value.x * before), fmaf(value.y, scale, merged.value.y * before));
  }
  WriteOutput(a, row, head, d, merged);
}

template <int kLanes, int kHeads, bool kFresh>
void LaunchKernel(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  const int head_blocks = (args.attention.group + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(cluster * args.gangs),
                  static_cast<unsigned>(args.attention.kv.num_kv_heads * head_blocks), static_cast<unsigned>(rows));
  LaunchClusters(ctx, &HalfRowKernel<kLanes, kHeads, kFresh>, grid, kThreads, Rounds<kLanes>::kBytes, args, cluster);
  if (args.gangs == 1) return;
  LaunchOverlapped(ctx, &MergeGangsKernel, dim3(static_cast<unsigned>(args.attention.num_heads), grid.z),
                   dim3(kMergeThreads), 0, args);
}

template <int kLanes, bool kFresh>
void LaunchHeads(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  if (args.attention.group == 1) return LaunchKernel<kLanes, 1, kFresh>(ctx, args, rows, cluster);
  // 32 lanes: records of four heads would not fit the static shared memory.
  if (args.attention.group == 2 || kLanes == 32) return LaunchKernel<kLanes, 2, kFresh>(ctx, args, rows, cluster);
  if constexpr (kLanes < 32) LaunchKernel<kLanes, 4, kFresh>(ctx, args, rows, cluster);
}

}  // namespace
}  // namespace attention_half

void LaunchHalfRows(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, AttentionRoute route,
                    const RowSet& rows) {
  constexpr int kRowsAtOnce = 32768;  // gridDim.z is limited to 65535
  Scratch scratch(ctx.workspace);
  float* const records = scratch.Take<float>(HalfRowRecordFloats(ctx.traits, shape));
  for (int first = 0; first < rows.count; first += kRowsAtOnce) {
    const int count = std::min(kRowsAtOnce, rows.count - first);
    const HalfRowPlan plan = PlanHalfRows(ctx.traits, shape, count, rows.max_length);
    const attention_half::RowArgs row_args{args, rows.list != nullptr ? rows.list + first : nullptr, first, plan.gangs,
                                           records};
    DispatchSlots(args.kv.head_dim, [&]<int kSlots>() {
      constexpr int kLanes = 4 * kSlots;
      AppendsItself(route) ? attention_half::LaunchHeads<kLanes, true>(ctx, row_args, count, plan.cluster)
                           : attention_half::LaunchHeads<kLanes, false>(ctx, row_args, count, plan.cluster);
    });
  }
}

}  // namespace stoch::cuda
