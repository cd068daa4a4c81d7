// fp16 baseline, single rows: flash decoding over a half cache, the context split over a cluster of blocks.
//
// A block serves up to four query heads of one KV head, so keys and values are read once for all of them. kLanes lanes
// hold one token (16 bytes each); every warp keeps its own running maximum, and warps are merged at the end. A small
// pass needs no append kernel: as in row_fresh.cuh every block rotates and rounds the pass's own positions
// for itself, which leaves the loads of older ones free to start before the kernel in front has ended. A short context
// is one block's work, however large the cluster that a graph was recorded with.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxCluster = kMaxAttentionCluster;
constexpr int kVector = 8;  // halves of a 16-byte load
constexpr int kStep = 4;    // tokens of a lane group between two rescalings; as many loads of K and V in flight
constexpr int kSoloTokens = kHalfRowSoloTokens;  // up to here one block beats a cluster
constexpr float kLowest = -1e30f;                // below every score, and finite: the difference of two of them is 0
constexpr float kLog2E = 1.4426950408889634f;

struct RowArgs {
  AttentionArgs attention;
  const int32_t* row_list = nullptr;
  int32_t row_offset = 0;
};

// Softmax of some query heads over disjoint sets of tokens: weights are 2^(score - largest).
template <int kHeads, int kDims>
struct Records {
  static constexpr int kCount = 8;
  static_assert(kCount == kWarps && kCount == kMaxCluster);

  alignas(16) float values[kCount][kHeads][kDims];
  float2 stats[kCount][kHeads];  // largest, sum of weights
};

// The pass's own positions up to the row's, and its queries in units of log2; shared memory.
template <int kHeads, int kDims>
struct FreshRows {
  alignas(16) float q[kHeads][kDims];
  alignas(16) __half k[kFreshRows][kDims];
  alignas(16) __half v[kFreshRows][kDims];
};

// What: 2^x; a result that would be subnormal is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void Unpack(const uint4& packed, float (&to)[kVector]) {
  const __half2* pairs = reinterpret_cast<const __half2*>(&packed);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

// What: sums over two lanes that differ in bit `s`: each keeps its half of the 2 * width values, the upper lane the
//       upper half.
__device__ __forceinline__ void SumHalves(float* values, int width, int s) {
  constexpr int kMaxWidth = 8;
  const bool upper = (threadIdx.x & s) != 0;
#pragma unroll
  for (int j = 0; j < kMaxWidth; ++j) {
    if (j >= width) break;
    const float given = upper ? values[j] : values[j + width];
    const float kept = upper ? values[j + width] : values[j];
    values[j] = kept + __shfl_xor_sync(0xffffffffu, given, s);
  }
}

// What:     waits for the kernel in front, with the first job's addresses made; fills `fresh` for `heads` query heads
//           of `info`'s row, and reports what is not finite.
// Requires: all threads of the block; the caller puts a barrier behind it.
template <int kHeads, int kDims>
__device__ void RotateFresh(const AttentionArgs& a, const PassRow& info, int kv_head, int first_head, int heads,
                            FreshRows<kHeads, kDims>& fresh) {
  constexpr int kPairs = (kDims + 63) / 64;
  const int head_dim = a.kv.head_dim;
  const int half = head_dim / 2;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int count = info.position - info.start_position + 1;
  // Jobs: the queries, then every k, then every v.
  for (int job = static_cast<int>(threadIdx.x >> 5); job < heads + 2 * count; job += kWarps) {
    const bool is_q = job < heads;
    const bool is_v = job >= heads + count;
    const int index = is_q ? count - 1 : job - heads - (is_v ? count : 0);  // which of the pass's positions
    const int64_t row = info.first_row + index;
    const float* from = is_q ? a.q + row * a.q_stride + (first_head + job) * head_dim
                             : (is_v ? a.v + row * a.v_stride : a.k + row * a.k_stride) + kv_head * head_dim;
    MakeHere(from);
    WaitForPrevious();
    HeadVector<kPairs> x;
    LoadHead(x, from, half, lane);
    if (!is_v) Rotate(x, a.rope + (info.start_position + index) * a.rope_stride, half, lane);
    const float max_abs = WarpMaxAbs(x);
    if (lane == 0 && !IsFinite(max_abs)) a.finite.Report();
    if (is_q) {
      ForEachDim(x, half, lane, [&](int i, float value) { fresh.q[job][i] = value * (a.inv_sqrt * kLog2E); });
    } else {
      __half* to = is_v ? fresh.v[index] : fresh.k[index];
      ForEachDim(x, half, lane, [&](int i, float value) { to[i] = __float2half_rn(value); });
    }
  }
  WaitForPrevious();  // warps without a job
}

// What: writes the row's own k and v to the cache; `page` holds its position. All threads of the block.
template <int kHeads, int kDims>
__device__ void AppendFresh(const KvView& kv, const PassRow& info, int kv_head, int32_t page,
                            const FreshRows<kHeads, kDims>& fresh) {
  constexpr int kPieces = kDims / kVector;
  const int tid = static_cast<int>(threadIdx.x);
  const int dim = tid % kPieces * kVector;
  if (tid >= 2 * kPieces || dim >= kv.head_dim) return;
  const int index = info.position - info.start_position;
  const __half* from = tid < kPieces ? fresh.k[index] : fresh.v[index];
  __half* to = (tid < kPieces ? kv.k_half : kv.v_half) + kv.Value(page, kv_head, info.position & (kv.page_tokens - 1));
  *reinterpret_cast<uint4*>(to + dim) = *reinterpret_cast<const uint4*>(from + dim);
}

// Two neighbouring dims of one head of records that were put together.
struct Merged {
  float2 stats;
  float2 value;
};
template <int kHeads, int kDims>
__device__ __forceinline__ Merged Merge(const Records<kHeads, kDims>& records, int count, int head, int dim) {
  constexpr int kCount = Records<kHeads, kDims>::kCount;
  float2 stats[kCount];
  float2 values[kCount];
  Merged merged{{kLowest, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    if (r >= count) break;
    stats[r] = records.stats[r][head];
    values[r] = *reinterpret_cast<const float2*>(&records.values[r][head][dim]);
    merged.stats.x = fmaxf(merged.stats.x, stats[r].x);
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    if (r >= count) break;
    const float scale = Exp2(stats[r].x - merged.stats.x);
    merged.stats.y = fmaf(stats[r].y, scale, merged.stats.y);
    merged.value.x = fmaf(values[r].x, scale, merged.value.x);
    merged.value.y = fmaf(values[r].y, scale, merged.value.y);
  }
  return merged;
}

// kFresh: for passes of at most kFreshRows rows; rotates and appends them itself.
template <int kLanes, int kHeads, bool kFresh>
__global__ void __launch_bounds__(kThreads, 2) HalfRowKernel(const RowArgs args) {
  constexpr int kGroups = 32 / kLanes;  // tokens of a warp
  constexpr int kDims = kLanes * kVector;
  __shared__ Records<kHeads, kDims> of_warps;
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
  const int rank = Cluster::Rank();
  if (rank != 0 && length <= kSoloTokens) return;
  const int cluster = length <= kSoloTokens ? 1 : Cluster::Size();
  if (cluster > 1) Cluster::Arrive();

  const int head_blocks = (a.group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / head_blocks;
  const int first_head = kv_head * a.group + static_cast<int>(blockIdx.y) % head_blocks * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * a.group - first_head);
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(info.sequence) * a.pass.max_pages;
  const int dim = lane % kLanes * kVector;
  const bool active = dim < kv.head_dim;
  const int slots = cluster * kWarps * kGroups;
  const int slot = (rank * kWarps + warp) * kGroups + lane / kLanes;

  // Positions of the pass are taken from `fresh` where they are looked at; here they stand for a position before.
  const int last = kFresh ? max(info.start_position - 1, 0) : length - 1;
  const uint32_t token_vectors = static_cast<uint32_t>(kv.head_dim) / kVector;
  const uint32_t page_vectors = kv.num_kv_heads * token_vectors << kv.page_shift;
  const uint32_t first_vector = (kv_head * token_vectors << kv.page_shift) + (active ? lane % kLanes : 0);
  const auto* keys = reinterpret_cast<const uint4*>(kv.k_half) + first_vector;
  const auto* values = reinterpret_cast<const uint4*>(kv.v_half) + first_vector;
  uint32_t places[kStep];  // 32 bits: CudaKvCache sees to it
  uint4 k_packed[kStep];
  uint4 v_packed[kStep];
  const auto load_keys = [&](int base) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const int t = min(base + i * slots + slot, last);
      places[i] = pages[t >> kv.page_shift] * page_vectors + (t & (kv.page_tokens - 1)) * token_vectors;
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) k_packed[i] = __ldcg(keys + places[i]);
  };
  const auto load_values = [&] {
#pragma unroll
    for (int i = 0; i < kStep; ++i) v_packed[i] = __ldcg(values + places[i]);
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
    load_keys(0);
    load_values();
    RotateFresh(a, info, kv_head, first_head, heads, fresh);
    __syncthreads();
    if (rank == 0 && first_head == kv_head * a.group) AppendFresh(kv, info, kv_head, page, fresh);
  } else {
    WaitForPrevious();
    load_keys(0);
    load_values();
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kFresh) {
        q[h][i] = fresh.q[h][dim + i];  // nobody looks at what heads that are not there give
      } else {
        q[h][i] = active && h < heads
                      ? a.q[row * a.q_stride + (first_head + h) * kv.head_dim + dim + i] * (a.inv_sqrt * kLog2E)
                      : 0.0f;
      }
    }
  }

  // Scores of a round, one per head and token, are spread over the lanes of a group: `kOwn` of one head for each. Where
  // there are more lanes than scores, kSame neighbours have the same ones.
  constexpr int kScores = kHeads * kStep;
  constexpr int kOwn = kScores > kLanes ? kScores / kLanes : 1;
  constexpr int kSame = kScores < kLanes ? kLanes / kScores : 1;
  constexpr int kHeadLanes = kSame * kStep / kOwn;  // lanes of a group with scores of the same head
  static_assert(kOwn <= kStep);
  const int own_token = slot + lane % kHeadLanes / kSame * kOwn * slots;  // the first of this lane's in a round
  float largest = kLowest;                                                // of this lane's head, in the whole warp
  float sum = 0.0f;                                                       // of this lane's weights
  float out[kHeads][kVector] = {};
  for (int base = 0;;) {
    const int next = base + slots * kStep;
    if constexpr (kFresh) {
      if (next > info.start_position) {
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
          const int index = min(base + i * slots + slot, length - 1) - info.start_position;
          if (index < 0) continue;
          k_packed[i] = *reinterpret_cast<const uint4*>(&fresh.k[index][active ? dim : 0]);
          v_packed[i] = *reinterpret_cast<const uint4*>(&fresh.v[index][active ? dim : 0]);
        }
      }
    }
    float scores[kScores];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      float k[kVector];
      Unpack(k_packed[i], k);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < kVector; ++j) dot = fmaf(q[h][j], k[j], dot);
        scores[h * kStep + i] = dot;
      }
    }
    if (next < length) load_keys(next);
    int width = kScores;
#pragma unroll
    for (int s = kLanes / 2; s > 0; s /= 2) {
      if (width > 1) {
        width /= 2;
        SumHalves(scores, width, s);
      } else {
        scores[0] += __shfl_xor_sync(0xffffffffu, scores[0], s);
      }
    }
    float top = largest;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      if (base + own_token + n * slots >= length) scores[n] = -INFINITY;
      top = fmaxf(top, scores[n]);
    }
#pragma unroll
    for (int s = kSame; s < 32; s *= 2) {
      if (s < kHeadLanes || s >= kLanes) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, s));
    }
    const float scale = Exp2(largest - top);
    largest = top;
    sum *= scale;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      scores[n] = Exp2(scores[n] - top);
      sum += scores[n];
    }
    float weights[kHeads][kStep];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float head_scale = __shfl_sync(0xffffffffu, scale, h * kHeadLanes, kLanes);
#pragma unroll
      for (int j = 0; j < kVector; ++j) out[h][j] *= head_scale;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        weights[h][i] = __shfl_sync(0xffffffffu, scores[i % kOwn], h * kHeadLanes + i / kOwn * kSame, kLanes);
      }
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      float v[kVector];
      Unpack(v_packed[i], v);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) out[h][j] = fmaf(weights[h][i], v[j], out[h][j]);
      }
    }
    if (next >= length) break;
    load_values();
    base = next;
  }

  // ---- lanes of the warp
  int first_dim = dim;
  int width = kVector;
#pragma unroll
  for (int s = 16; s >= kLanes; s /= 2) {
    width /= 2;
    if ((lane & s) != 0) first_dim += width;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) SumHalves(out[h], width, s);
  }
#pragma unroll
  for (int s = kSame; s < 32; s *= 2) {
    if (s < kHeadLanes || s >= kLanes) sum += __shfl_xor_sync(0xffffffffu, sum, s);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int j = 0; j < kVector / kGroups; ++j) of_warps.values[warp][h][first_dim + j] = out[h][j];
  }
  if (lane < kLanes && lane % kHeadLanes == 0) of_warps.stats[warp][lane / kHeadLanes] = make_float2(largest, sum);
  // ---- warps of the block, blocks of the cluster
  const auto for_pairs = [&](const auto& fn) {
    constexpr int kPairs = kDims / 2;
#pragma unroll
    for (int first = 0; first < kHeads * kPairs; first += kThreads) {
      const int i = first + tid;
      if (i < kHeads * kPairs) fn(i / kPairs, i % kPairs * 2);
    }
  };
  const auto write = [&](int h, int d, const Merged& merged) {
    if (h >= heads || d >= kv.head_dim) return;
    const float scale = __fdividef(1.0f, merged.stats.y);
    float* to = a.out + row * a.out_stride + (first_head + h) * kv.head_dim + d;
    to[0] = merged.value.x * scale;
    to[1] = merged.value.y * scale;
  };
  __syncthreads();
  if (cluster == 1) {
    for_pairs([&](int h, int d) { write(h, d, Merge(of_warps, kWarps, h, d)); });
    return;
  }
  Cluster::Wait();  // every block runs: its shared memory may be written
  Records<kHeads, kDims>* to = Cluster::At(&of_blocks, 0);
  for_pairs([&](int h, int d) {
    const Merged merged = Merge(of_warps, kWarps, h, d);
    *reinterpret_cast<float2*>(&to->values[rank][h][d]) = merged.value;
    if (d == 0) to->stats[rank][h] = merged.stats;
  });
  Cluster::Sync();
  if (rank != 0) return;
  for_pairs([&](int h, int d) { write(h, d, Merge(of_blocks, cluster, h, d)); });
}

template <int kLanes, int kHeads, bool kFresh>
void LaunchKernel(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  const int head_blocks = (args.attention.group + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(cluster), static_cast<unsigned>(args.attention.kv.num_kv_heads * head_blocks),
                  static_cast<unsigned>(rows));
  LaunchClusters(ctx, &HalfRowKernel<kLanes, kHeads, kFresh>, grid, kThreads, 0, args);
}

template <int kLanes, bool kFresh>
void LaunchHeads(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  if (args.attention.group == 1) return LaunchKernel<kLanes, 1, kFresh>(ctx, args, rows, cluster);
  // 32 lanes: records of four heads would not fit the static shared memory.
  if (args.attention.group == 2 || kLanes == 32) return LaunchKernel<kLanes, 2, kFresh>(ctx, args, rows, cluster);
  if constexpr (kLanes < 32) LaunchKernel<kLanes, 4, kFresh>(ctx, args, rows, cluster);
}

template <bool kFresh>
void LaunchLanes(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  const int head_dim = args.attention.kv.head_dim;
  if (head_dim <= 32) return LaunchHeads<4, kFresh>(ctx, args, rows, cluster);
  if (head_dim <= 64) return LaunchHeads<8, kFresh>(ctx, args, rows, cluster);
  if (head_dim <= 128) return LaunchHeads<16, kFresh>(ctx, args, rows, cluster);
  LaunchHeads<32, kFresh>(ctx, args, rows, cluster);
}

}  // namespace

void LaunchHalfRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows, bool fresh) {
  constexpr int kRowsAtOnce = 32768;  // gridDim.z is limited to 65535
  for (int first = 0; first < rows.count; first += kRowsAtOnce) {
    const int count = std::min(kRowsAtOnce, rows.count - first);
    const RowArgs row_args{args, rows.list != nullptr ? rows.list + first : nullptr, first};
    const AttentionShape shape{
        AttentionMode::kExact, Precision::kFp16, args.num_heads, args.kv.num_kv_heads, args.kv.head_dim, {}, {}};
    const int cluster = HalfRowCluster(ctx.traits, shape, count, rows.max_length);
    fresh ? LaunchLanes<true>(ctx, row_args, count, cluster) : LaunchLanes<false>(ctx, row_args, count, cluster);
  }
}

}  // namespace stoch::cuda
