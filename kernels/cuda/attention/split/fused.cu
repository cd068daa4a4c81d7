// SPDX-License-Identifier: Apache-2.0
// Attention of a row and the query heads of a KV head in one kernel: a cluster of eight blocks, each of which owns 32 lanes
// of position, t mod 256 in [32 rank, 32 rank + 32), so that it has whole lanes of the softmax sum. For what
// resident.cu does not take: rows that do not all fit the GPU at once, and logical devices that share one.
//
// The blocks exchange the largest score, the 256 lane sums, the largest weight and, at the end, their sums of p v; the
// scores never leave shared memory unless a graph made for shorter contexts is replayed.
#include <algorithm>

#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = kValueHeads;
static_assert(kWarps == kHeads);
constexpr int kRanks = kSplitRanks;
constexpr int kTile = 32;  // positions that a warp scores at a time

template <int kHeadDim, int kN>
struct Shared {
  uint4 thermometers[kCodes * kTableCopies];
  union {
    QueryStreams<kHeadDim, kN> queries;
    int32_t sums[kHeads][kHeadDim];
  };
  int32_t gather[kRanks][kHeads * kHeadDim / kRanks];  // of all blocks, this one's part of the output
  float lane_sums[kHeads][kRowLanes];
  float score_max[kRanks][kHeads];  // of all blocks
  float weight_max[kRanks][kHeads];
  float of_warps[kWarps][kHeads];
  float totals[kHeads];
};

// A block's part of a row: local position i is position Token(i).
struct Stripe {
  static constexpr int kStripe = kSplitUnit / kRanks;  // positions of a block in every unit
  static_assert(kStripe % kGroupDims == 0 && kHeads * kStripe <= kThreads);
  SplitRow row;
  SplitHeads heads;
  const int32_t* pages;
  float* scores;  // [heads][stride]
  int stride;
  int rank;

  __device__ int Token(int i) const {
    return (row.first_unit() + i / kStripe) * kSplitUnit + rank * kStripe + i % kStripe;
  }
  __device__ int count() const { return row.units() * kStripe; }
};

// The larger of a head's numbers over lanes with the same head (kHeadLanes apart), warps and, through `all`, blocks.
// Contains barriers of the cluster.
__device__ __forceinline__ void ShareMaxima(int heads, int rank, float (&of_warps)[kWarps][kHeads],
                                            float (&all)[kRanks][kHeads]) {
  const int tid = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (tid < heads * kRanks) {
    const int head = tid / kRanks;
    float most = of_warps[0][head];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) most = fmaxf(most, of_warps[w][head]);
    Cluster::At(&all[0][0], tid % kRanks)[rank * kHeads + head] = most;
  }
  Cluster::Sync();
}

__device__ __forceinline__ float MaxOf(const float (&all)[kRanks][kHeads], int head) {
  float most = all[0][head];
#pragma unroll
  for (int r = 1; r < kRanks; ++r) most = fmaxf(most, all[r][head]);
  return most;
}

// Scores of the stripe; each warp's maxima go to s.of_warps.
template <bool kDirect, int kHeadDim, int kN>
__device__ __forceinline__ void Scores(const SplitArgs& args, const Stripe& b, Shared<kHeadDim, kN>& s) {
  constexpr int kGroups = kHeadDim / kGroupDims;
  const AttentionArgs& a = args.attention;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const uint32_t table = LaneTable(s.thermometers);
  float q_scale[kN], largest[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int head = min(n * kScoreHeads + (lane & 3), b.heads.count - 1);
    q_scale[n] = args.q.scales[static_cast<int64_t>(b.row.row) * a.num_heads + b.heads.first + head];
    largest[n] = BitsToFloat(0xff800000u);
  }
  const int own = (lane >> 2) * 4;  // of a tile's positions, the first of this lane's
  const int tiles = (b.count() + kTile - 1) / kTile;
  uint4 k[kGroups][1];
  KeyPlaces at{};
  if (warp < tiles) {
    at = KeysOf(a.kv, b.pages, b.heads.kv_head, min(b.Token(warp * kTile + own), b.row.length - 1));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) k[g][0] = LoadKeys(a.kv, at, g);
  }
  StageQueries<kThreads>(args, b.row, b.heads, s.queries);
  __syncthreads();
#pragma unroll 1
  for (int tile = warp; tile < tiles; tile += kWarps) {
    int32_t acc[1][2][kN][4] = {};
    const float4 k_scale = __ldcg(reinterpret_cast<const float4*>(at.scales));
    const float scales[4] = {k_scale.x, k_scale.y, k_scale.z, k_scale.w};
    const bool has_next = tile + kWarps < tiles;
    if (has_next) {
      at = KeysOf(a.kv, b.pages, b.heads.kv_head, min(b.Token((tile + kWarps) * kTile + own), b.row.length - 1));
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      AddGroup<kDirect, kHeadDim, kN, 1>(k[g], table, s.queries, g, lane, acc);
      if (has_next) k[g][0] = LoadKeys(a.kv, at, g);
    }
    const int local = tile * kTile + own;
    if (local >= b.count()) continue;
    const int t = b.Token(local);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int head = n * kScoreHeads + (lane & 3);
      if (head >= b.heads.count) continue;
      float score[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t(&d)[4] = acc[0][i / 2][n];
        const int32_t count = i % 2 == 0 ? d[0] - d[1] : d[2] - d[3];
        score[i] = BipolarProduct(count, args.qk.gain, q_scale[n], scales[i]) * a.inv_sqrt;
        if (t + i < b.row.first || t + i >= b.row.length) score[i] = BitsToFloat(0xff800000u);
        largest[n] = fmaxf(largest[n], score[i]);
      }
      *reinterpret_cast<float4*>(b.scores + head * b.stride + local) =
          make_float4(score[0], score[1], score[2], score[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int x = 4; x < 32; x *= 2) largest[n] = fmaxf(largest[n], __shfl_xor_sync(0xffffffffu, largest[n], x));
    if (lane < kScoreHeads) s.of_warps[warp][n * kScoreHeads + lane] = largest[n];
  }
}

// Exponentials in the place of scores, the sums of the stripe's lanes to every block.
template <int kHeadDim, int kN>
__device__ __forceinline__ void Exponentials(const Stripe& b, Shared<kHeadDim, kN>& s) {
  constexpr int kStripe = Stripe::kStripe;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  for (int h = 0; h < b.heads.count; ++h) {
    const float largest = MaxOf(s.score_max, h);
    float* scores = b.scores + h * b.stride;
    for (int i = tid; i < b.count(); i += kThreads) scores[i] = Exp(scores[i] - largest);
  }
  __syncthreads();
  if (tid < b.heads.count * kStripe) {
    const int head = tid / kStripe;
    const float* e = b.scores + head * b.stride + tid % kStripe;
    const int units = b.row.units();
    float sum = 0.0f;
#pragma unroll 8
    for (int u = 0; u < units; ++u) sum = sum + e[u * kStripe];  // 0 where there is no position
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      Cluster::At(&s.lane_sums[0][0], r)[head * kRowLanes + b.rank * kStripe + tid % kStripe] = sum;
    }
  }
  Cluster::Sync();
  if (warp < b.heads.count) {
    float value[kRowLanes / 32];
#pragma unroll
    for (int w = 0; w < kRowLanes / 32; ++w) value[w] = s.lane_sums[warp][w * 32 + lane];
#pragma unroll
    for (int x = kRowLanes / 64; x > 0; x /= 2) {
#pragma unroll
      for (int w = 0; w < x; ++w) value[w] = value[w] + value[w + x];
    }
    float total = value[0];
#pragma unroll
    for (int x = 16; x > 0; x /= 2) total = total + __shfl_down_sync(0xffffffffu, total, x);
    if (lane == 0) s.totals[warp] = total;
  }
  __syncthreads();
}

// Weights in the place of exponentials; each warp's maxima go to s.of_warps.
template <int kHeadDim, int kN>
__device__ __forceinline__ void WeighStripe(const SplitArgs& args, const Stripe& b, Shared<kHeadDim, kN>& s) {
  const KvView& kv = args.attention.kv;
  float most[kHeads] = {};
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < b.count(); i += kThreads) {
    const int t = b.Token(i);
    if (t >= b.row.length) break;
    const int32_t page = __ldg(b.pages + (t >> kv.page_shift));
    const float v_scale = __ldcg(kv.v_scales + kv.Scale(page, b.heads.kv_head, t & (kv.page_tokens - 1)));
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= b.heads.count) break;
      float& at = b.scores[h * b.stride + i];
      const float p = at / s.totals[h];
      at = p * v_scale;
      most[h] = fmaxf(most[h], at);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const uint32_t bits = __reduce_max_sync(0xffffffffu, FloatToBits(most[h]));  // not negative: ordered as integers
    if ((threadIdx.x & 31) == 0) s.of_warps[threadIdx.x >> 5][h] = BitsToFloat(bits);
  }
}

// p v of the stripe into s.sums.
template <bool kDirect, int kHeadDim, int kN>
__device__ __forceinline__ void Values(const SplitArgs& args, const Stripe& b, Shared<kHeadDim, kN>& s) {
  const KvView& kv = args.attention.kv;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const uint32_t table = LaneTable(s.thermometers);
  const int column = lane >> 2;
  const bool is_head = column < b.heads.count;
  const float scale = is_head ? BipolarScale(MaxOf(s.weight_max, column), args.av.q_max) : 0.0f;
  const float* weights = b.scores + min(column, b.heads.count - 1) * b.stride;
  const int groups = b.count() / kGroupDims;
  int32_t acc[kHeadDim / 16][4] = {};
  uint4 v[kHeadDim / 32] = {};
  uint32_t levels = 0;
  const auto prepare = [&](int group, uint4(&to)[kHeadDim / 32]) {
    const int local = group * kGroupDims + (lane & 3) * 4;
    const int t = b.Token(local);
    levels = QuantizeWeights(args, b.row, t, *reinterpret_cast<const float4*>(weights + local), scale);
    if (__any_sync(0xffffffffu, levels != 0)) LoadValues<kHeadDim>(kv, b.pages, b.heads.kv_head, t, b.row.length, to);
  };
  if (warp < groups) prepare(warp, v);
#pragma unroll 1
  for (int group = warp; group < groups; group += kWarps) {
    const bool any = __any_sync(0xffffffffu, levels != 0);
    const Weights w = LoadWeights(args, b.Token(group * kGroupDims + (lane & 3) * 4), levels);
    uint4 next[kHeadDim / 32] = {};
    levels = 0;
    if (group + kWarps < groups) prepare(group + kWarps, next);
    if (any) AddValues<kDirect, kHeadDim>(v, w, table, acc);
#pragma unroll
    for (int m = 0; m < kHeadDim / 32; ++m) v[m] = next[m];
  }
  AddToBlock<kHeadDim>(acc, b.heads.count, s.sums);
}

// Sums of all blocks, each block's part of the output.
template <int kHeadDim, int kN>
__device__ __forceinline__ void WriteOutput(const SplitArgs& args, const Stripe& b, Shared<kHeadDim, kN>& s) {
  constexpr int kSlice = kHeadDim / kRanks;  // dimensions of a block
  const AttentionArgs& a = args.attention;
  const int tid = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int i = tid; i < b.heads.count * kHeadDim; i += kThreads) {
    const int head = i / kHeadDim;
    const int dim = i % kHeadDim;
    int32_t* to = Cluster::At(&s.gather[0][0], dim / kSlice) + b.rank * (kHeads * kSlice);
    to[head * kSlice + dim % kSlice] = s.sums[head][dim];
  }
  Cluster::Sync();
  for (int i = tid; i < b.heads.count * kSlice; i += kThreads) {
    int32_t total = 0;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) total += s.gather[r][i];
    const int head = i / kSlice;
    const float scale = BipolarScale(MaxOf(s.weight_max, head), args.av.q_max);
    a.out[b.row.row * a.out_stride + static_cast<int64_t>(b.heads.first + head) * kHeadDim + b.rank * kSlice +
          i % kSlice] = (static_cast<float>(total) * args.av.gain) * scale;
  }
}

template <bool kDirect, int kHeadDim, int kN>
__global__ void __launch_bounds__(kThreads, 2) SplitFusedKernel(const SplitArgs args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  auto& s = *reinterpret_cast<Shared<kHeadDim, kN>*>(shared_memory);
  StartNext();
  Stripe b;
  b.row = RowAt(args, static_cast<int>(blockIdx.z));
  b.heads = HeadsAt(args, static_cast<int>(blockIdx.y));
  b.pages = PagesOf(args, b.row);
  b.rank = Cluster::Rank();
  b.scores = reinterpret_cast<float*>(shared_memory + sizeof(s));
  b.stride = args.fused_units * Stripe::kStripe + 4;  // heads of a position in different banks
  if (b.row.units() > args.fused_units) {
    b.stride = static_cast<int>(args.scratch.stride / kRanks);
    b.scores = args.scratch.scores + HeadIndex(args, b.row, b.heads.first) * args.scratch.stride +
               static_cast<int64_t>(b.rank) * b.heads.count * b.stride;
  }
  FillThermometers<kThreads>(args.qk, s.thermometers);
  WaitForPrevious();
  args.attention.reporter.Begin();
  Scores<kDirect>(args, b, s);
  Cluster::Arrive();
  Cluster::Wait();  // every block runs: its shared memory may be written
  ShareMaxima(b.heads.count, b.rank, s.of_warps, s.score_max);
  Exponentials(b, s);
  if (threadIdx.x < b.heads.count && !IsFinite(s.totals[threadIdx.x])) args.attention.reporter.Report();
  // Nobody reads the queries' streams any more; other tables are rare.
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kHeadDim; i += kThreads)
    s.sums[i / kHeadDim][i % kHeadDim] = 0;
  if (args.av.ranks != args.qk.ranks) FillThermometers<kThreads>(args.av, s.thermometers);
  WeighStripe(args, b, s);
  ShareMaxima(b.heads.count, b.rank, s.of_warps, s.weight_max);
  Values<kDirect>(args, b, s);
  WriteOutput(args, b, s);
}

template <bool kDirect, int kHeadDim, int kN>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  static_assert(sizeof(Shared<kHeadDim, kN>) == kSplitTableBytes + SplitFusedBytes(kHeadDim, kN, kRanks));
  const dim3 grid(kRanks, static_cast<unsigned>(args.attention.kv.num_kv_heads * args.head_blocks),
                  static_cast<unsigned>(args.rows));
  LaunchClusters(ctx, &SplitFusedKernel<kDirect, kHeadDim, kN>, grid, kThreads,
                 static_cast<size_t>(plan.fused_shared_bytes), args);
}

}  // namespace

void LaunchSplitFused(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) {
  DispatchInstance(args, [&]<bool kDirect, int kHeadDim, int kN>() { Launch<kDirect, kHeadDim, kN>(ctx, plan, args); });
}

}  // namespace stoch::cuda
