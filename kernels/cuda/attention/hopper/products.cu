// SPDX-License-Identifier: Apache-2.0
// The products q k and p v of wide tiles, on binary wgmma.
//
// A block has a producer warp and two warpgroups that multiply. Each warpgroup takes two slots, that is (tile, head)
// pairs of 64 rows; all slots of a block share a KV head. The producer copies the stages of the block's range of
// positions into a ring that the warpgroups share, and a warpgroup makes thermometers of its rows' codes in registers.
// A stage serves 256 rows, so copies stay well below the bandwidth of the L2.
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/attention/hopper/multiply.cuh"
#include "kernels/cuda/attention/hopper/wide.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

using namespace attention_wide;  // NOLINT(google-build-using-namespace): of this file

// One (tile, query head) pair, up to 64 rows.
struct Slot {
  bool active = false;
  QueryTile tile;
  int head = 0;                // query head of the layer
  int64_t first_row = 0;       // row index, in the scratch, of the slot's first row
  int64_t first_position = 0;  // index of position 0 of the sequence in the streams and scales
  int first_kept = 0;          // first position that the scratch holds for the slot's rows (FirstKept)
  // End of the positions that the slot's rows see; 0 if inactive.
  __device__ int length() const { return active ? tile.length() : 0; }
};

// A block's work: `tile`, the tile of slot 0, which has the longest context; the KV head that all slots share; and
// `part`, the index of the block among args.parts blocks that divide the query heads of the KV head.
struct Place {
  int tile = 0;
  int kv_head = 0;
  int part = 0;
  __device__ explicit Place(const WideArgs& args) {
    const int block = static_cast<int>(blockIdx.x);
    part = block % args.parts;
    kv_head = block / args.parts % args.kv_heads;
    tile = block / (args.parts * args.kv_heads) * args.block_tiles;
  }
  // Returns the block's slot number `slot`, counted tile by tile: block_tiles tiles with args.heads query heads each.
  // The slot is inactive if its tile or head does not exist.
  __device__ Slot At(const WideArgs& args, int slot) const {
    Slot s;
    const int of_tile = tile + slot / args.heads;
    const int head = part * args.heads + slot % args.heads;
    s.active = slot / args.heads < args.block_tiles && of_tile < args.num_tiles && head < args.attention.group;
    if (!s.active) return s;
    s.tile = args.tiles[of_tile];
    s.head = (args.first_kv_head + kv_head) * args.attention.group + head;
    s.first_position = args.FirstPosition(kv_head, s.tile);
    s.first_kept = FirstKept(args.attention, s.tile.PositionOf(0));
    s.first_row = args.FirstRow(of_tile, kv_head * args.attention.group + head);
    return s;
  }
};

constexpr int kNoWindow = 1 << 30;  // larger than any position: no sliding window

// Reads the flags WideArgs::needed, which say which words of the value streams p v must multiply, for all slots of a
// block. Called by whole warps; lane i holds the flags of slot i.
class Needed {
 public:
  __device__ __forceinline__ Needed(const WideArgs& args, const Slot* slots) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane >= kWideSlots || !slots[lane].active) return;
    first_ = slots[lane].first_kept;
    end_ = slots[lane].length();
    at_ = args.NeededOf(slots[lane].first_row);
  }
  // Starts loading the flags for positions t .. t + kWideValues - 1.
  __device__ __forceinline__ void Load(int t) {
    word_ = 0;
    if (t >= first_ && t < end_) word_ = __ldg(at_ + (t - first_) / kWideValues);
  }
  // Both functions return a mask of slots for the positions of the last Load. Bit i of SomeCode: slot i has a code that
  // is not 0. Bit i of AllWords: slot i needs all words of the streams.
  __device__ __forceinline__ uint32_t SomeCode() const { return __ballot_sync(~0u, (word_ & kSomeCode) != 0); }
  __device__ __forceinline__ uint32_t AllWords() const { return __ballot_sync(~0u, (word_ & kAllWords) != 0); }

 private:
  const uint32_t* at_ = nullptr;
  int first_ = 0;
  int end_ = 0;
  uint32_t word_ = 0;
};

// This thread holds accumulators of rows RowOf() and RowOf() + 8 of a slot's 64. QuadLane() is its index in its quad of
// lanes.
__device__ __forceinline__ int RowOf() { return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4); }
__device__ __forceinline__ int QuadLane() { return static_cast<int>(threadIdx.x % 4); }

// State of rows RowOf() and RowOf() + 8 that a thread keeps in shared memory between blocks of keys, to save registers.
// Each thread reads back only what it wrote itself.
struct RowState {
  // The query's scale, and the largest count * gain * q_scale * k_scale so far.
  float q_scale[2];
  float largest[2];
};

// kMixed, where query rows have stream lengths of their own: the gain of each of a slot's 64 rows, which is the real
// value of one count at the row's length, before the scales of q and k. In shared memory after the RowStates.
using RowGains = float[kQueryTile];
static_assert(kWideSlots * sizeof(RowGains) == kWideGainBytes);

// Writes the counts of one block of keys to `to`, and raises state.largest to the largest scaled count of a visible
// key, for rows RowOf() (i = 0) and RowOf() + 8 (i = 1). Key j, counted from this lane's first key, is visible to row i
// if hidden <= j - apart * i < visible. kEdge: false if all rows see all keys of the block.
template <bool kEdge>
__device__ __forceinline__ void StoreScores(const WideArgs& args, const int32_t (&acc)[64], const float* k_scales,
                                            int hidden, int visible, int apart, int16_t* to, RowState& state,
                                            const float (&gains)[2]) {
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    const float4 low = __ldg(reinterpret_cast<const float4*>(k_scales + 16 * quarter));
    const float4 high = __ldg(reinterpret_cast<const float4*>(k_scales + 16 * quarter + kKeyBlock / 2));
    const float scales[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int32_t* pair = acc + 4 * (4 * quarter + r) + 2 * i;
        packed[r] = __byte_perm(static_cast<uint32_t>(pair[0]), static_cast<uint32_t>(pair[1]), 0x5410);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float product = __fmul_rn(__fmul_rn(static_cast<float>(pair[j]), gains[i]),
                                          __fmul_rn(state.q_scale[i], scales[2 * r + j]));
          const int of_row = 32 * quarter + 2 * r + j - apart * i;
          if (!kEdge || (of_row >= hidden && of_row < visible)) {
            state.largest[i] = fmaxf(state.largest[i], product);
          }
        }
      }
      *reinterpret_cast<uint4*>(to + 8 * i * args.stride + 32 * quarter) =
          make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

// Computes q k for the warpgroup's kOwn slots over positions [begin, end): writes the counts to args.scores and raises
// args.row_max. The other arguments are in shared memory: `codes` [slot][dim / 16] and `states` [slot] of this thread's
// rows, with elements kConsumers apart, and in kMixed `gains` [slot].
template <int kWords, int kHeadDim, bool kMixed>
__device__ __forceinline__ void ConsumeScores(const WideArgs& args, ScoreConsumer<kWords, kMixed>& consumer,
                                              const Slot* slots, int begin, int end, uint2* codes, RowState* states,
                                              RowGains* gains) {
  constexpr int kBlocks = kHeadDim / 16;
  const float lowest = __uint_as_float(0xff800000u);
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const Slot& slot = slots[own];
    RowState* state = states + own * kConsumers;
    *state = {{0.0f, 0.0f}, {lowest, lowest}};
    for (int b = 0; b < kBlocks; ++b) codes[(own * kBlocks + b) * kConsumers] = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = RowOf() + 8 * i;
      if constexpr (kMixed) consumer.is_level[own][i] = 0;
      if (row >= slot.tile.num_rows) continue;
      const int64_t vector = int64_t{slot.tile.first_row + row} * args.attention.num_heads + slot.head;
      state->q_scale[i] = args.q.scales[vector];
      if constexpr (kMixed) {
        const RankTable& table = args.lengths.qk_ranks[args.lengths.q_slots[vector]];
        consumer.is_level[own][i] = table.ranks == nullptr ? 0x01010101u : 0u;
        gains[own][row] = table.gain;
      }
      const uint32_t* words = args.q.words + vector * (kHeadDim / 4) + QuadLane();
      for (int b = 0; b < kBlocks; ++b) {
        reinterpret_cast<uint32_t*>(codes + (own * kBlocks + b) * kConsumers)[i] = words[4 * b];
      }
    }
  }
  const auto multiply = [&](auto first, int b) {
    uint32_t of_rows[kOwn][2];
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const uint2 pair = codes[(own * kBlocks + b) * kConsumers];
      of_rows[own][0] = pair.x;
      of_rows[own][1] = pair.y;
    }
    consumer.template Multiply<first>(of_rows);
  };
  const int length = min(max(slots[0].length(), slots[1].length()), end);
  int key = begin;
  for (; key < length; key += kWideKeys) {
    multiply(std::true_type(), 0);
#pragma unroll 1
    for (int b = 1; b < kBlocks; ++b) multiply(std::false_type(), b);
    consumer.Finish();
    Unrolled<kOwn>([&](auto own) {
      const Slot& slot = slots[own];
      if (key >= slot.length() || key < slot.first_kept) return;
      const float* k_scales = args.k_scales + slot.first_position + key + WideScale(8 * QuadLane());
      int16_t* to = args.scores + args.RowAt(slot.first_row + RowOf(), slot.tile) + key + 8 * QuadLane();
      // Numbers of keys, counted from this lane's first key: up to the row's own position (visible), and before the
      // row's window (hidden).
      const int position = slot.tile.PositionOf(RowOf());
      const int visible = position + 1 - key - 8 * QuadLane();
      const int window = args.attention.window > 0 ? args.attention.window : kNoWindow;
      const int hidden = position + 1 - window - key - 8 * QuadLane();
      RowState now = states[own * kConsumers];
      float of_rows[2] = {args.qk.gain, args.qk.gain};
      if constexpr (kMixed) of_rows[0] = gains[own][RowOf()], of_rows[1] = gains[own][RowOf() + 8];
      if (key + kWideKeys <= slot.tile.PositionOf(0) + 1 &&
          key >= FirstSeen(args.attention, slot.tile.PositionOf(kQueryTile - 1))) {
        StoreScores<false>(args, consumer.acc[own], k_scales, hidden, visible, 0, to, now, of_rows);
      } else {
        StoreScores<true>(args, consumer.acc[own], k_scales, hidden, visible, slot.tile.Apart(), to, now, of_rows);
      }
      states[own * kConsumers] = now;
    });
  }
  for (int own = 0; own < kOwn; ++own) {
    const Slot& slot = slots[own];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = RowOf() + 8 * i;
      float largest = states[own * kConsumers].largest[i];
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      // inv_sqrt is positive, so the largest product gives the largest score.
      if (QuadLane() == 0 && row < slot.tile.num_rows) {
        atomicMax(args.row_max + slot.first_row + row, OrderedBits(__fmul_rn(largest, args.attention.inv_sqrt)));
      }
    }
  }
  for (; key < end; key += kWideKeys) consumer.Skip(kBlocks);
}

// Adds one slot's sums of p v to args.sums; if args.sums is null, the block saw all positions of its rows, and the
// scaled sums are written as outputs.
template <int kHeadDim, bool kMixed>
__device__ __forceinline__ void StoreValues(const WideArgs& args, const int32_t (&acc)[kHeadDim / 2],
                                            const Slot& slot) {
  const int column = 2 * QuadLane();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = RowOf() + 8 * i;
    if (row >= slot.tile.num_rows) continue;
    if (args.sums != nullptr) {
      int32_t* to = args.sums + (slot.first_row + row) * kHeadDim + column;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        atomicAdd(to + 8 * n, acc[4 * n + 2 * i]);
        atomicAdd(to + 8 * n + 1, acc[4 * n + 2 * i + 1]);
      }
      continue;
    }
    const float scale = args.p_scales[slot.first_row + row];
    float gain = args.av.gain;
    if constexpr (kMixed) {
      const int64_t vector = int64_t{slot.tile.first_row + row} * args.attention.num_heads + slot.head;
      gain = args.lengths.av_ranks[args.lengths.p_slots[vector]].gain;
    }
    float* to = args.attention.out + int64_t{slot.tile.first_row + row} * args.attention.out_stride +
                int64_t{slot.head} * kHeadDim + column;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        to[8 * n + j] = __fmul_rn(__fmul_rn(static_cast<float>(acc[4 * n + 2 * i + j]), gain), scale);
      }
    }
  }
}

// Returns the eight codes of half kHalf. codes: the sixteen codes of a row that a lane loads for kWideValues positions.
template <int kHalf>
__device__ __forceinline__ uint2 HalfOf(const uint4& codes) {
  return kHalf == 0 ? make_uint2(codes.x, codes.y) : make_uint2(codes.z, codes.w);
}

// Computes p v over positions [begin, end) for the warpgroup's slots, kOwn from slots[first] on, and stores the sums.
// slots: all slots of the block.
template <int kWords, int kHeadDim, bool kMixed>
__device__ __forceinline__ void ConsumeValues(const WideArgs& args, ValueConsumer<kWords, kHeadDim, kMixed>& consumer,
                                              const Slot* slots, int first, int begin, int end) {
  const Slot* const own_slots = slots + first;
  const uint8_t* from[kOwn];
  int last[kOwn];
  uint4 now[kOwn][2];
  const auto load = [&](int at) {
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        now[own][i] = make_uint4(0, 0, 0, 0);
        if (at >= own_slots[own].first_kept && at < last[own]) {
          now[own][i] = __ldg(reinterpret_cast<const uint4*>(from[own] + 8 * i * args.code_stride + at));
        }
      }
    }
  };
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    from[own] = args.CodesAt(own_slots[own].first_row + RowOf(), own_slots[own].tile) + 16 * QuadLane();
    last[own] = min(own_slots[own].length(), end);
#pragma unroll
    for (int k = 0; k < kHeadDim / 2; ++k) consumer.acc[own][k] = 0;
  }
  Needed needed(args, slots);
  needed.Load(begin);
  load(begin);
  for (int t = begin; t < end; t += kWideValues) {
    const uint32_t some = needed.SomeCode();
    const uint32_t all = needed.AllWords();
    needed.Load(t + kWideValues);
    // Finish comes before each branch: a branch while products are in flight makes ptxas serialize wgmma (C7513).
    // Meanwhile the other warpgroup multiplies.
    if ((some >> first & 3) != 0) {
      uint2 ranks[2][kOwn][2];
      Unrolled<2>([&](auto half) {
#pragma unroll
        for (int i = 0; i < 2 * kOwn; ++i) {
          const uint2 codes = HalfOf<half>(now[i / 2][i % 2]);
          ranks[half][i / 2][i % 2] = make_uint2(consumer.RanksOf(codes.x), consumer.RanksOf(codes.y));
        }
      });
      load(t + kWideValues);
      Unrolled<2>([&](auto half) { consumer.template Multiply<0>(ranks[half]); });
      consumer.Finish();
      if ((all >> first & 3) != 0) {
        Unrolled<2 * (kWords - 1)>([&](auto i) { consumer.template Multiply<1 + i / 2>(ranks[i % 2]); });
        consumer.Finish();
      } else if (all != 0) {
        consumer.Skip(2 * (kWords - 1));
      }
    } else {
      load(t + kWideValues);
      if (some != 0) consumer.Skip(all != 0 ? 2 * kWords : 2);
    }
  }
  if (begin >= max(own_slots[0].length(), own_slots[1].length())) return;
  Unrolled<kOwn>([&](auto own) { StoreValues<kHeadDim, kMixed>(args, consumer.acc[own], own_slots[own]); });
}

// Copies the stages of the keys at positions [begin, end) into the ring. Called by the producer warp; one lane issues
// the copies.
template <int kStageBytes, int kSteps, int kStep>
__device__ __forceinline__ void ProduceScores(const WideArgs& args, Ring& ring, const Slot& longest, int begin,
                                              int end) {
  if (threadIdx.x % 32 != 0) return;
  const int64_t first = (longest.first_position + begin) / kStep * kSteps;
  const uint8_t* from = args.k_streams + first * kStageBytes;
  for (int left = (end - begin) / kStep * kSteps; left > 0; --left) {
    BarrierWait(ring.empty(ring.slot), ring.phase ^ 1);
    BarrierExpect(ring.full(ring.slot), kStageBytes);
    BulkCopy(ring.stage(ring.slot, kStageBytes), from, kStageBytes, ring.full(ring.slot));
    from += kStageBytes;
    ring.Next();
  }
}
// Copies the stages of the values at positions [begin, end) into the ring. For each kWideValues positions: nothing if
// all codes of all slots are 0; else the first words of both halves; then, if any slot needs all words, the other words
// of both halves.
template <int kWords, int kUnitBytes>
__device__ __forceinline__ void ProduceValues(const WideArgs& args, Ring& ring, const Slot* slots, int begin, int end) {
  constexpr int kStageBytes = kWideValueUnits * kUnitBytes;
  auto block = static_cast<uint32_t>((slots[0].first_position + begin) / kWideValues);
  const bool copies = threadIdx.x % 32 == 0;
  const auto copy = [&](const uint8_t* from, int stages, uint32_t bytes) {
#pragma unroll 1
    for (; stages > 0; --stages, from += bytes) {
      if (copies) {
        BarrierWait(ring.empty(ring.slot), ring.phase ^ 1);
        BarrierExpect(ring.full(ring.slot), bytes);
        BulkCopy(ring.stage(ring.slot, kStageBytes), from, bytes, ring.full(ring.slot));
      }
      ring.Next();
    }
  };
  Needed needed(args, slots);
  needed.Load(begin);
  for (int t = begin; t < end; t += kWideValues, ++block) {
    const uint32_t some = needed.SomeCode();
    const uint32_t all = needed.AllWords();
    needed.Load(t + kWideValues);
    if (some == 0) continue;
    copy(args.v_first + int64_t{block} * (kWideFirstUnits * kUnitBytes), 2, kStageBytes);
    if (all == 0) continue;
    copy(args.v_others + int64_t{block} * (WideOtherUnits(kWords) * kUnitBytes), 2 * (kWords - 1), 8 * kUnitBytes);
  }
}

// Computes one product: q k, or p v if kValues. Launched with a block per (kWideSlots slots, range of args.range
// positions): blockIdx.x selects the slots (Place), blockIdx.y the range. stages: number of stages of the ring. kMixed:
// rows have stream lengths of their own.
template <int kWords, int kHeadDim, bool kValues, bool kMixed>
__global__ void __launch_bounds__(kThreads, 1) WideProductsKernel(const __grid_constant__ WideArgs args, int stages) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(256) uint8_t ring_memory[];
  using Multiplier =
      std::conditional_t<kValues, ValueConsumer<kWords, kHeadDim, kMixed>, ScoreConsumer<kWords, kMixed>>;
  // Positions of one block of keys or values; args.range is a multiple of it.
  constexpr int kStep = kValues ? kWideValues : kWideKeys;
  // q k: stages of one block of keys.
  constexpr int kSteps = kHeadDim / 16;
  __shared__ Slot slots[kWideSlots];
  if (threadIdx.x < kWideSlots) slots[threadIdx.x] = Place(args).At(args, static_cast<int>(threadIdx.x));
  __syncthreads();
  const Slot& longest = slots[0];
  int begin = longest.first_kept;
  for (int i = 1; i < kWideSlots; ++i) begin = slots[i].active ? min(begin, slots[i].first_kept) : begin;
  begin += static_cast<int>(blockIdx.y) * args.range;
  if (begin >= longest.length()) return;
  const int end = min(begin + args.range, (longest.length() + kStep - 1) / kStep * kStep);
  Ring ring{SharedAddressInRegister(ring_memory), stages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      BarrierInit(ring.full(i), 1);
      BarrierInit(ring.empty(i), kConsumers / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  // The shuffle from lane 0 tells the compiler that the warp's role and all its loops over stages are uniform.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumers / 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kProducerRegisters));
    if (warp > kConsumers / 32) return;
    if constexpr (kValues) {
      ProduceValues<kWords, Multiplier::kUnitBytes>(args, ring, slots, begin, end);
    } else {
      ProduceScores<Multiplier::kStageBytes, kSteps, kStep>(args, ring, longest, begin, end);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
    const int first = warp / 4 * kOwn;
    Multiplier consumer{{ring, threadIdx.x % 32 == 0, args.minus_one}};
    if constexpr (kValues) {
      ConsumeValues<kWords, kHeadDim, kMixed>(args, consumer, slots, first, begin, end);
    } else {
      uint2* codes = reinterpret_cast<uint2*>(ring_memory + kWideRingHeader + stages * Multiplier::kStageBytes);
      RowState* states = reinterpret_cast<RowState*>(codes + kOwn * kSteps * kConsumers);
      auto* gains = reinterpret_cast<RowGains*>(states + kOwn * kConsumers);
      ConsumeScores<kWords, kHeadDim, kMixed>(args, consumer, slots + first, begin, end, codes + threadIdx.x,
                                              states + threadIdx.x, gains + first);
    }
  }
#else
  __trap();  // never reached: plans choose this kernel only if GpuTraits has wgmma
#endif
}

template <bool kValues, bool kMixed>
void Launch(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges) {
  const bool wide = args.attention.kv.head_dim == 128;
  const bool long_streams = (kValues ? args.av : args.qk).stream_words == 4;
  auto* kernel =
      long_streams
          ? (wide ? &WideProductsKernel<4, 128, kValues, kMixed> : &WideProductsKernel<4, 64, kValues, kMixed>)
          : (wide ? &WideProductsKernel<2, 128, kValues, kMixed> : &WideProductsKernel<2, 64, kValues, kMixed>);
  const int64_t stage_bytes = kValues ? plan.value_stage_bytes : plan.score_stage_bytes;
  const int stages = kValues ? plan.value_stages : plan.score_stages;
  const int64_t bytes = kValues ? plan.value_shared_bytes : plan.score_shared_bytes;
  STOCH_CHECK(kWideRingHeader + stages * stage_bytes + (kMixed && !kValues ? kWideGainBytes : 0) <= bytes);
  STOCH_CHECK(stages <= kMaxWideStages);
  AllowShared(ctx, kernel, static_cast<size_t>(bytes));
  const int blocks = (args.num_tiles + plan.tiles - 1) / plan.tiles * args.kv_heads * plan.parts;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ranges));
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), ctx.stream>>>(args, stages);
  STOCH_CUDA_LAUNCH("WideProductsKernel");
}

}  // namespace

void LaunchWideScores(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges) {
  args.is_mixed ? Launch<false, true>(ctx, plan, args, ranges) : Launch<false, false>(ctx, plan, args, ranges);
}

void LaunchWideValues(DeviceContext& ctx, const WidePlan& plan, const WideArgs& args, int64_t ranges) {
  args.is_mixed ? Launch<true, true>(ctx, plan, args, ranges) : Launch<true, false>(ctx, plan, args, ranges);
}

}  // namespace stoch::cuda
