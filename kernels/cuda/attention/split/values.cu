// SPDX-License-Identifier: Apache-2.0
// Computes p v of single rows on binary tensor cores: a block takes a part of a row's context for its query heads of
// one KV head.
//
// Columns of a tile are query heads, rows are dimensions of values. A warp takes 16 positions of all dimensions at a
// time, and loads no values if the weights of all heads at these positions are quantized to 0.
#include <type_traits>

#include "kernels/cuda/attention/split/dealt.cuh"
#include "kernels/cuda/attention/split/parts.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTileHeads = kValueHeads;
constexpr int kStep = kWarps * kGroupDims;  // positions that a block takes at a time

template <int kHeadDim>
struct Shared {
  uint4 thermometers[kCodes * kTableCopies];
  int32_t sums[kTileHeads][kHeadDim];
  float scales[kTileHeads];
  int is_last;
};

// Returns the largest weight of query head heads.first + lane / 4 over parts lane % 4, lane % 4 + 4, ..., so the
// maximum over a quad of lanes is the row's. Returns 0 if the block has no such head.
__device__ __forceinline__ float ScaleOf(const SplitArgs& args, const SplitRow& row, const SplitHeads& heads) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (lane >> 2 >= heads.count) return 0.0f;
  const float* from = args.scratch.weight_max + HeadIndex(args, row, heads.first + (lane >> 2)) * args.scratch.parts;
  const int parts = WeightParts(args, row);
  float largest = 0.0f;
  for (int i = lane & 3; i < parts; i += 4) largest = fmaxf(largest, __ldcg(from + i));
  return largest;
}

// As above for dealt rows: lane 0 of each quad returns the head's largest weight over all devices, the other lanes 0.
__device__ __forceinline__ float ScaleOf(const DealtArgs& args, const SplitRow& row, const SplitHeads& heads) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (lane >> 2 >= heads.count || (lane & 3) != 0) return 0.0f;
  return LargestWeight(args, HeadIndex(args, row, heads.first + (lane >> 2)));
}

// Adds the block's sums of p v to the row's sums in this device's share, which other devices read.
template <int kHeadDim>
__device__ void WriteSums(const DealtArgs& args, const SplitRow& row, const SplitHeads& heads, int /*parts*/,
                          Shared<kHeadDim>& s) {
  int32_t* sums = args.shares[args.index].sums + HeadIndex(args, row, heads.first) * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x); i < heads.count * kHeadDim; i += kThreads) {
    atomicAdd(sums + i, s.sums[i / kHeadDim][i % kHeadDim]);
  }
}

// Adds the block's sums of p v to the row's sums in scratch. The block that finishes the last of `parts` parts writes
// the output; a row of one part needs no scratch. Called by all threads.
template <int kHeadDim>
__device__ void WriteSums(const SplitArgs& args, const SplitRow& row, const SplitHeads& heads, int parts,
                          Shared<kHeadDim>& s) {
  const AttentionArgs& a = args.attention;
  const int tid = static_cast<int>(threadIdx.x);
  const auto write = [&](int h, int dim, int32_t total) {
    a.out[row.row * a.out_stride + static_cast<int64_t>(heads.first + h) * kHeadDim + dim] =
        (static_cast<float>(total) * args.av.gain) * s.scales[h];
  };
  const int count = heads.count * kHeadDim;
  if (parts == 1) {
    for (int i = tid; i < count; i += kThreads) write(i / kHeadDim, i % kHeadDim, s.sums[i / kHeadDim][i % kHeadDim]);
    return;
  }
  int32_t* sums = args.scratch.sums + HeadIndex(args, row, heads.first) * kHeadDim;
  for (int i = tid; i < count; i += kThreads) atomicAdd(sums + i, s.sums[i / kHeadDim][i % kHeadDim]);
  __threadfence();
  __syncthreads();
  if (tid == 0) {
    int32_t* done = args.scratch.done + row.index * a.kv.num_kv_heads * args.head_blocks + heads.block;
    s.is_last = atomicAdd(done, 1) == parts - 1 ? 1 : 0;
  }
  __syncthreads();
  if (s.is_last == 0) return;
  __threadfence();
  for (int i = tid; i < count; i += kThreads) write(i / kHeadDim, i % kHeadDim, __ldcg(sums + i));
}

// Quantizes weights and multiplies them by values. Grid: args.value_blocks blocks in a grid-stride loop over items. An
// item is a part of a row's context for the query heads of one block; a warp takes 16 positions of the part at a time.
template <typename Args, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 3) SplitValuesKernel(const Args args) {
  extern __shared__ __align__(256) uint8_t shared_memory[];
  auto& s = *reinterpret_cast<Shared<kHeadDim>*>(shared_memory);
  const auto& kv = KvOf(args);
  StartNext();
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int blocks = kv.num_kv_heads * args.head_blocks;
  const int part_units = PartUnits(args, args.value_blocks);
  FillThermometers<kThreads>(args.av, s.thermometers);
  const uint32_t table = LaneTable(s.thermometers);
  WaitForPrevious();
  SplitRow row;
  const auto count_of = [&](const SplitRow& of) { return PartsOf(of, part_units) * blocks; };
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); FindItem(args, item, count_of, &row); item += args.value_blocks) {
    const SplitHeads heads = HeadsAt(args, row.item % blocks);
    const int begin = (row.first_unit() + row.item / blocks * part_units) * kSplitUnit;
    const int end = min(begin + part_units * kSplitUnit, row.length);
    const int32_t* pages = PagesOf(args, row);
    // This lane's first position: the lane has four of the 16 positions of its warp.
    int t = begin + (tid >> 5) * kGroupDims + (lane & 3) * 4;
    // Has the lane's offset in t, so that the loop ends for all lanes of a warp at once.
    const int warp_end = end + (lane & 3) * 4;
    const float* from =
        args.scratch.scores + HeadIndex(args, row, heads.first + min(lane >> 2, heads.count - 1)) * args.scratch.stride;
    const auto weights_at = [&](int at) {
      return __ldcg(reinterpret_cast<const float4*>(from + min(at, end - 1 & ~3)));
    };
    float4 ahead = weights_at(t);
    uint4 v[kHeadDim / 32];
    LoadValues<kHeadDim>(kv, pages, heads.kv_head, t, row.length, v);
    float largest = ScaleOf(args, row, heads);
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float scale = lane >> 2 < heads.count ? BipolarScale(largest, args.av.q_max) : 0.0f;
    __syncthreads();  // the sums of the previous item have been written
    for (int i = tid; i < kTileHeads * kHeadDim; i += kThreads) s.sums[i / kHeadDim][i % kHeadDim] = 0;
    if (tid < 32 && (lane & 3) == 0) s.scales[lane >> 2] = scale;
    __syncthreads();
    uint32_t levels = QuantizeWeights(args, row, t, ahead, scale);
    ahead = weights_at(t + kStep);
    int32_t acc[kHeadDim / 16][4] = {};
#pragma unroll 1
    for (; t < warp_end; t += kStep) {
      const bool any = __any_sync(0xffffffffu, levels != 0);
      const Weights w = LoadWeights(args, t, levels);
      uint4 next_v[kHeadDim / 32] = {};
      levels = 0;
      if (t + kStep < warp_end) {
        levels = QuantizeWeights(args, row, t + kStep, ahead, scale);
        if (__any_sync(0xffffffffu, levels != 0)) {
          LoadValues<kHeadDim>(kv, pages, heads.kv_head, t + kStep, row.length, next_v);
        }
        ahead = weights_at(t + 2 * kStep);
      }
      if (any) AddPositions<kHeadDim>(v, w, table, acc);
#pragma unroll
      for (int m = 0; m < kHeadDim / 32; ++m) v[m] = next_v[m];
    }
    AddToBlock<kHeadDim>(acc, heads.count, s.sums);
    __syncthreads();
    WriteSums<kHeadDim>(args, row, heads, PartsOf(row, part_units), s);
  }
}

template <typename Args, int kHeadDim>
void Launch(DeviceContext& ctx, const SplitPlan& plan, const Args& args) {
  static_assert(sizeof(Shared<kHeadDim>) <= kSplitTableBytes + SplitValueBytes(kHeadDim));
  LaunchRows(ctx, &SplitValuesKernel<Args, kHeadDim>, args.value_blocks, kThreads, plan.value_shared_bytes, args);
}

template <typename Args>
void LaunchFor(DeviceContext& ctx, const SplitPlan& plan, const Args& args) {
  args.attention.kv.head_dim == 64 ? Launch<Args, 64>(ctx, plan, args) : Launch<Args, 128>(ctx, plan, args);
}

}  // namespace

void LaunchSplitValues(DeviceContext& ctx, const SplitPlan& plan, const SplitArgs& args) { LaunchFor(ctx, plan, args); }

void LaunchSplitValues(DeviceContext& ctx, const SplitPlan& plan, const DealtArgs& args) { LaunchFor(ctx, plan, args); }

}  // namespace stoch::cuda
