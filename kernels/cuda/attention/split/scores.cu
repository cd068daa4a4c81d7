// SPDX-License-Identifier: Apache-2.0
// Computes the scores q k of single rows on binary tensor cores: a block takes a part of a row's context for its query
// heads of one KV head. All thermometers are looked up, since making every other one by shifts takes longer in deep
// contexts.
#include <type_traits>

#include "kernels/cuda/attention/split/dealt.cuh"
#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
// Runs of 32 positions that a warp takes at a time; a lane has four neighbouring positions of each.
constexpr int kQuads = 2;
constexpr int kWarpTokens = 32 * kQuads;  // positions that a warp takes at a time
constexpr int kTileHeads = kScoreHeads;
constexpr int kAhead = 2;  // groups of 16 dimensions whose keys are in flight
static_assert(kWarps * kWarpTokens == kSplitUnit);

template <int kHeadDim, int kN>
struct Shared {
  uint4 thermometers[kCodes * kTableCopies];
  QueryStreams<kHeadDim, kN> queries;
  float largest[kWarps][kN * kTileHeads];
};

// Writes a warp's kWarpTokens scores from position `token` on to scratch.scores, computed from the counts in `acc`, for
// the lane's head of each tile. Raises largest[n] to the largest score of the lane's head in tile n.
template <int kN>
__device__ __forceinline__ void WriteScores(const SplitArgs& args, const SplitRow& row, const SplitHeads& heads,
                                            int token, const KeyPlaces (&at)[kQuads], const float (&q_scale)[kN],
                                            const int32_t (&acc)[kQuads][2][kN][4], float (&largest)[kN]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
  for (int u = 0; u < kQuads; ++u) {
    const int t = token + 32 * u + (lane >> 2) * 4;
    if (t >= row.length) continue;
    const float4 k_scale = __ldcg(reinterpret_cast<const float4*>(at[u].scales));
    const float scales[4] = {k_scale.x, k_scale.y, k_scale.z, k_scale.w};
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int head = n * kTileHeads + (lane & 3);
      if (head >= heads.count) continue;
      float score[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t(&d)[4] = acc[u][i / 2][n];
        const int32_t count = i % 2 == 0 ? d[0] - d[1] : d[2] - d[3];
        score[i] = BipolarProduct(count, args.qk.gain, q_scale[n], scales[i]) * args.attention.inv_sqrt;
        if (t + i >= row.first && t + i < row.length) largest[n] = fmaxf(largest[n], score[i]);
      }
      float* to = args.scratch.scores + HeadIndex(args, row, heads.first + head) * args.scratch.stride + t;
      __stcg(reinterpret_cast<float4*>(to), make_float4(score[0], score[1], score[2], score[3]));
    }
  }
}

// Writes the largest score of a part for each of the block's heads to scratch.score_max, or for dealt rows into this
// device's shared score_max by atomicMax. Called by all threads of the block; contains a barrier.
template <typename Args, int kHeadDim, int kN>
__device__ __forceinline__ void WriteMaxima(const Args& args, const SplitRow& row, const SplitHeads& heads, int part,
                                            float (&largest)[kN], Shared<kHeadDim, kN>& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int x = 4; x < 32; x *= 2) largest[n] = fmaxf(largest[n], __shfl_xor_sync(0xffffffffu, largest[n], x));
    if (lane < kTileHeads) s.largest[tid >> 5][n * kTileHeads + lane] = largest[n];
  }
  __syncthreads();
  if (tid >= heads.count) return;
  float most = s.largest[0][tid];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) most = fmaxf(most, s.largest[w][tid]);
  const int64_t index = HeadIndex(args, row, heads.first + tid);
  if constexpr (std::is_same_v<Args, DealtArgs>) {
    atomicMax(args.shares[args.index].score_max + index, OrderedWord(most));
  } else {
    args.scratch.score_max[index * args.scratch.parts + part] = most;
  }
}

// Zeroes the row's sums of p v and its counter of finished parts in scratch, to which the value kernel adds. Called by
// all threads of one block.
__device__ __forceinline__ void ClearSums(const SplitArgs& args, const SplitRow& row, const SplitHeads& heads) {
  const int head_dim = args.attention.kv.head_dim;
  int32_t* sums = args.scratch.sums + HeadIndex(args, row, heads.first) * head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < heads.count * head_dim; i += kThreads) sums[i] = 0;
  const int blocks = args.attention.kv.num_kv_heads * args.head_blocks;
  if (threadIdx.x == 0) args.scratch.done[row.index * blocks + heads.block] = 0;
}

// Fills s with the streams of the queries of the block's heads, and q_scale[n] with the scale of the lane's head in
// tile n. Codes of a dealt row lie in memory of the device that owns the row, so they are first copied to shared
// memory, once.
template <int kHeadDim, int kN>
__device__ __forceinline__ void TakeQueries(const SplitArgs& args, const SplitRow& row, const SplitHeads& heads,
                                            QueryStreams<kHeadDim, kN>& s, float (&q_scale)[kN]) {
  const int64_t vector = static_cast<int64_t>(row.row) * args.attention.num_heads + heads.first;
  StageCodes<kThreads>(args, reinterpret_cast<const uint8_t*>(args.q.words) + vector * kHeadDim, heads, s);
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int head = min(n * kTileHeads + static_cast<int>(threadIdx.x & 3), heads.count - 1);
    q_scale[n] = args.q.scales[static_cast<int64_t>(row.row) * args.attention.num_heads + heads.first + head];
  }
}
template <int kHeadDim, int kN>
__device__ __forceinline__ void TakeQueries(const DealtArgs& args, const SplitRow& row, const SplitHeads& heads,
                                            QueryStreams<kHeadDim, kN>& s, float (&q_scale)[kN]) {
  __shared__ uint32_t words[kN * kTileHeads * kHeadDim / 4];
  const DealtQueryCodes from = CodesOf(args, row, heads.first);
  for (int i = static_cast<int>(threadIdx.x); i < heads.count * kHeadDim / 4; i += kThreads) {
    words[i] = LoadShared(from.words + i);
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    q_scale[n] = LoadShared(from.scales + min(n * kTileHeads + static_cast<int>(threadIdx.x & 3), heads.count - 1));
  }
  __syncthreads();
  StageCodes<kThreads>(args, reinterpret_cast<const uint8_t*>(words), heads, s);
}

// Writes the scores and the maximum of each part. Grid: args.score_blocks blocks in a grid-stride loop over items. An
// item is a part of a row's context for the query heads of one block; a warp takes kWarpTokens positions at a time.
template <typename Args, int kHeadDim, int kN>
__global__ void __launch_bounds__(kThreads, kN == 1 ? 4 : 3) SplitScoresKernel(const Args args) {
  constexpr bool kDealt = std::is_same_v<Args, DealtArgs>;
  extern __shared__ __align__(256) uint8_t shared_memory[];
  auto& s = *reinterpret_cast<Shared<kHeadDim, kN>*>(shared_memory);
  constexpr int kGroups = kHeadDim / kGroupDims;
  const auto& kv = KvOf(args);
  StartNext();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int blocks = kv.num_kv_heads * args.head_blocks;
  const int part_units = PartUnits(args, args.score_blocks);
  FillThermometers<kThreads>(args.qk, s.thermometers);
  const uint32_t table = LaneTable(s.thermometers);
  WaitForPrevious();
  SplitRow row;
  const auto count_of = [&](const SplitRow& of) { return PartsOf(of, part_units) * blocks; };
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); FindItem(args, item, count_of, &row); item += args.score_blocks) {
    const int part = row.item / blocks;
    const SplitHeads heads = HeadsAt(args, row.item % blocks);
    const int32_t* pages = PagesOf(args, row);
    const int begin = (row.first_unit() + part * part_units) * kSplitUnit;
    const int end = min(begin + part_units * kSplitUnit, row.length);
    int token = begin + warp * kWarpTokens;
    KeyPlaces at[kQuads], next[kQuads];
    const auto place = [&](KeyPlaces(&to)[kQuads], int from) {
#pragma unroll
      for (int u = 0; u < kQuads; ++u) to[u] = KeysAt(kv, pages, heads.kv_head, from + 32 * u, row.length);
    };
    place(at, token);
    uint4 k[kAhead][kQuads];
    const auto load = [&](const KeyPlaces(&from)[kQuads], int group, uint4(&to)[kQuads]) {
#pragma unroll
      for (int u = 0; u < kQuads; ++u) to[u] = LoadKeys(kv, from[u], group);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(at, i, k[i]);
    __syncthreads();  // every warp has finished reading the streams of the previous item
    float q_scale[kN], largest[kN];
    TakeQueries(args, row, heads, s.queries, q_scale);
    if (!kDealt && part == 0) ClearSums(args, row, heads);
#pragma unroll
    for (int n = 0; n < kN; ++n) largest[n] = BitsToFloat(0xff800000u);
    __syncthreads();
#pragma unroll 1
    for (; token < end; token += kSplitUnit) {
      const bool has_next = token + kSplitUnit < end;
      if (has_next) place(next, token + kSplitUnit);
      int32_t acc[kQuads][2][kN][4] = {};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        uint4 now[kQuads];
#pragma unroll
        for (int u = 0; u < kQuads; ++u) now[u] = k[g % kAhead][u];
        if (g + kAhead < kGroups) {
          load(at, g + kAhead, k[g % kAhead]);
        } else if (has_next) {
          load(next, g + kAhead - kGroups, k[g % kAhead]);
        }
        AddGroup<kHeadDim, kN, kQuads>(now, table, s.queries, g, lane, acc);
      }
      WriteScores<kN>(args, row, heads, token, at, q_scale, acc, largest);
#pragma unroll
      for (int u = 0; u < kQuads; ++u) at[u] = next[u];
    }
    WriteMaxima(args, row, heads, part, largest, s);
  }
}

template <typename Args, int kHeadDim, int kN>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const Args& args) {
  static_assert(sizeof(Shared<kHeadDim, kN>) == kSplitTableBytes + SplitScoreBytes(kHeadDim, kN));
  LaunchRows(ctx, &SplitScoresKernel<Args, kHeadDim, kN>, args.score_blocks, kThreads, plan.score_shared_bytes, args);
}

template <typename Args>
void LaunchFor(DeviceContext& ctx, const SplitPlan& plan, const Args& args) {
  DispatchHeads(args, [&]<int kHeadDim, int kN>() { Launch<Args, kHeadDim, kN>(ctx, plan, args); });
}

}  // namespace

void LaunchSplitScores(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) { LaunchFor(ctx, plan, args); }

void LaunchSplitScores(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args) { LaunchFor(ctx, plan, args); }

}  // namespace stoch::cuda
