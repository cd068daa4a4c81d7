// fp16 baseline, single rows: flash decoding over a half cache, the context split over a cluster of blocks.
//
// A block serves up to four query heads of one KV head, so keys and values are read once for all of them. kLanes lanes
// hold one token (16 bytes each); every group of lanes keeps its own running maximum, and they are merged at the end.
#include <algorithm>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/cluster_launch.h"
#include "kernels/cuda/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStep = 4;  // tokens of a lane group between two rescalings; as many loads of K and of V in flight
constexpr float kLog2E = 1.4426950408889634f;

struct RowArgs {
  AttentionArgs attention;
  const int32_t* row_list = nullptr;
  int32_t row_offset = 0;
};

// Running softmax of one query head over some tokens: weights are 2^(score - largest).
struct Partial {
  float largest;
  float sum;
  float values[8];  // this lane's dims
};

__device__ __forceinline__ void Merge(Partial& into, float largest, float sum, const float (&values)[8]) {
  const float top = fmaxf(into.largest, largest);
  const float scale_a = exp2f(into.largest - top);
  const float scale_b = exp2f(largest - top);
  into.largest = top;
  into.sum = into.sum * scale_a + sum * scale_b;
#pragma unroll
  for (int i = 0; i < 8; ++i) into.values[i] = into.values[i] * scale_a + values[i] * scale_b;
}

__device__ __forceinline__ void Unpack(const uint4& packed, float (&to)[8]) {
  const __half2* pairs = reinterpret_cast<const __half2*>(&packed);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

template <int kLanes, int kHeads>
__global__ void __launch_bounds__(kThreads) HalfRowKernel(const RowArgs args) {
  constexpr int kGroups = 32 / kLanes;  // tokens of a warp
  constexpr int kRecord = kLanes * 8 + 2;
  constexpr float kLowest = -1e30f;  // finite: the difference of two of them is 0
  __shared__ float records[kWarps][kHeads][kRecord];
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  StartNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int rank = Cluster::Rank();
  const int cluster = Cluster::Size();
  const int head_blocks = (a.group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / head_blocks;
  const int first_head = kv_head * a.group + static_cast<int>(blockIdx.y) % head_blocks * kHeads;
  const int heads = min(kHeads, (kv_head + 1) * a.group - first_head);
  const int grid_row = static_cast<int>(blockIdx.z);
  const int row = args.row_list != nullptr ? args.row_list[grid_row] : args.row_offset + grid_row;
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(a.pass.row_sequence[row]) * a.pass.max_pages;
  const int length = a.pass.positions[row] + 1;
  const int dim = lane % kLanes * 8;
  const bool active = dim < kv.head_dim;

  float q[kHeads][8];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[h][i] = active && h < heads
                    ? a.q[row * a.q_stride + static_cast<int64_t>(first_head + h) * kv.head_dim + dim + i] *
                          (a.inv_sqrt * kLog2E)
                    : 0.0f;
    }
  }
  Partial state[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) state[h] = Partial{kLowest, 0.0f, {}};

  const int slots = cluster * kWarps * kGroups;
  const int slot = (rank * kWarps + warp) * kGroups + lane / kLanes;
  for (int base = 0; base < length; base += slots * kStep) {
    uint4 k_packed[kStep];
    uint4 v_packed[kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const int t = min(base + i * slots + slot, length - 1);
      const int64_t offset =
          kv.Value(pages[t >> kv.page_shift], kv_head, t & (kv.page_tokens - 1)) + (active ? dim : 0);
      k_packed[i] = *reinterpret_cast<const uint4*>(kv.k_half + offset);
      v_packed[i] = *reinterpret_cast<const uint4*>(kv.v_half + offset);
    }
    float scores[kHeads][kStep];
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      float k[8];
      Unpack(k_packed[i], k);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) dot = fmaf(q[h][j], k[j], dot);
        scores[h][i] = dot;
      }
    }
#pragma unroll
    for (int s = kLanes / 2; s > 0; s /= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kStep; ++i) scores[h][i] += __shfl_xor_sync(0xffffffffu, scores[h][i], s);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float top = state[h].largest;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        if (base + i * slots + slot >= length) scores[h][i] = kLowest;
        top = fmaxf(top, scores[h][i]);
      }
      const float scale = exp2f(state[h].largest - top);
      state[h].largest = top;
      state[h].sum *= scale;
#pragma unroll
      for (int j = 0; j < 8; ++j) state[h].values[j] *= scale;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        scores[h][i] = scores[h][i] == kLowest ? 0.0f : exp2f(scores[h][i] - top);
        state[h].sum += scores[h][i];
      }
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      float v[8];
      Unpack(v_packed[i], v);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 8; ++j) state[h].values[j] = fmaf(scores[h][i], v[j], state[h].values[j]);
      }
    }
  }

  // Lane groups of the warp, warps of the block, blocks of the cluster.
#pragma unroll
  for (int s = 16; s >= kLanes; s /= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = __shfl_xor_sync(0xffffffffu, state[h].values[j], s);
      const float largest = __shfl_xor_sync(0xffffffffu, state[h].largest, s);
      const float sum = __shfl_xor_sync(0xffffffffu, state[h].sum, s);
      Merge(state[h], largest, sum, values);
    }
  }
  if (lane < kLanes) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < 8; ++j) records[warp][h][dim + j] = state[h].values[j];
      if (lane == 0) {
        records[warp][h][kLanes * 8] = state[h].largest;
        records[warp][h][kLanes * 8 + 1] = state[h].sum;
      }
    }
  }
  if (cluster > 1) {
    Cluster::Sync();
  } else {
    __syncthreads();
  }
  if (rank == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < heads * kv.head_dim; i += kThreads) {
      const int h = i / kv.head_dim;
      const int d = i % kv.head_dim;
      float top = kLowest;
      float sum = 0.0f;
      float value = 0.0f;
      for (int r = 0; r < cluster; ++r) {
        const float* remote = Cluster::At(&records[0][0][0], r);
        for (int w = 0; w < kWarps; ++w) {
          const float* record = remote + (w * kHeads + h) * kRecord;
          const float largest = record[kLanes * 8];
          const float next = fmaxf(top, largest);
          const float old_scale = exp2f(top - next);
          const float new_scale = exp2f(largest - next);
          top = next;
          sum = sum * old_scale + record[kLanes * 8 + 1] * new_scale;
          value = value * old_scale + record[d] * new_scale;
        }
      }
      a.out[row * a.out_stride + static_cast<int64_t>(first_head + h) * kv.head_dim + d] = value / sum;
    }
  }
  if (cluster > 1) Cluster::Sync();  // the other blocks' shared memory is read until here
}

template <int kLanes, int kHeads>
void LaunchKernel(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  const int head_blocks = (args.attention.group + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(cluster), static_cast<unsigned>(args.attention.kv.num_kv_heads * head_blocks),
                  static_cast<unsigned>(rows));
  LaunchClusters(ctx, &HalfRowKernel<kLanes, kHeads>, grid, kThreads, 0, args);
}

template <int kLanes>
void LaunchHeads(DeviceContext& ctx, const RowArgs& args, int rows, int cluster) {
  if (args.attention.group == 1) return LaunchKernel<kLanes, 1>(ctx, args, rows, cluster);
  if (args.attention.group == 2) return LaunchKernel<kLanes, 2>(ctx, args, rows, cluster);
  LaunchKernel<kLanes, 4>(ctx, args, rows, cluster);
}

}  // namespace

void LaunchHalfRows(DeviceContext& ctx, const AttentionArgs& args, const RowSet& rows) {
  constexpr int kRowsAtOnce = 32768;  // gridDim.z is limited to 65535
  for (int first = 0; first < rows.count; first += kRowsAtOnce) {
    const int count = std::min(kRowsAtOnce, rows.count - first);
    const RowArgs row_args{args, rows.list != nullptr ? rows.list + first : nullptr, first};
    int cluster = 1;
    if (ctx.compute_capability >= 90) {
      const int64_t blocks = static_cast<int64_t>(count) * args.kv.num_kv_heads;
      while (cluster < 8 && blocks * cluster < ctx.sm_count && cluster * 64 < rows.max_length) cluster *= 2;
    }
    if (args.kv.head_dim <= 32) {
      LaunchHeads<4>(ctx, row_args, count, cluster);
    } else if (args.kv.head_dim <= 64) {
      LaunchHeads<8>(ctx, row_args, count, cluster);
    } else if (args.kv.head_dim <= 128) {
      LaunchHeads<16>(ctx, row_args, count, cluster);
    } else {
      LaunchHeads<32>(ctx, row_args, count, cluster);
    }
  }
}

}  // namespace stoch::cuda
