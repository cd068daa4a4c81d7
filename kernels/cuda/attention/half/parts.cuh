// SPDX-License-Identifier: Apache-2.0
// The parts of the fp16 baseline's row kernel: the pass's own rows, the running softmax of a warp, records to merge.
// Included by rows.cu alone.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda::attention_half {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMergeThreads = 128;  // two dims each
inline constexpr int kMaxCluster = kMaxAttentionCluster;
inline constexpr int kVector = 8;                       // halves of a 16-byte load
inline constexpr int kStep = 4;                         // tokens of a lane group between two rescalings: a round
inline constexpr int kSoloTokens = kHalfRowSoloTokens;  // up to here one block beats a cluster
inline constexpr float kLowest = -1e30f;  // below every score, and finite: the difference of two of them is 0
inline constexpr float kLog2E = 1.4426950408889634f;

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

// 2^x; a result that would be subnormal is 0.
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

// Sums over two lanes that differ in bit `s`: each keeps its half of the 2 * width values, the upper lane the upper
// half.
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

// Waits for the previous kernel, with the first job's addresses made; fills `fresh` for `heads` query heads of `info`'s
// row, and reports what is not finite.
// Requires: all threads of the block; the caller puts a barrier after it.
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
    if (lane == 0 && !IsFinite(max_abs)) a.reporter.Report();
    if (is_q) {
      ForEachDim(x, half, lane, [&](int i, float value) { fresh.q[job][i] = value * (a.inv_sqrt * kLog2E); });
    } else {
      __half* to = is_v ? fresh.v[index] : fresh.k[index];
      ForEachDim(x, half, lane, [&](int i, float value) { to[i] = __float2half_rn(value); });
    }
  }
  WaitForPrevious();  // warps without a job
  a.reporter.Begin();
}

// Writes the row's own k and v to the cache; `page` holds its position. All threads of the block.
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

// Keys and values of a thread's next rounds in flight to shared memory, in slots of its own: no other thread reads them, so
// that they need no barrier. Copies are in groups: keys, then values, of one round after the other.
//
// Pages are read many rounds ahead and wait in the lanes of a register, as TilePlaces (../split/resident_pages.cuh) has them:
// a round that looked its own page up waited for it about as long as for the round before.
template <int kLanes>
class Rounds {
 public:
  static constexpr int kAhead = 2;  // rounds in flight
  static constexpr int kVectors = 2 * kStep;
  static constexpr int kBytes = kAhead * kVectors * kThreads * static_cast<int>(sizeof(uint4));

  // The lane's rounds begin at positions first, first + step .., multiples of kStep; those after `last` stand for it.
  // `shared`: kBytes. `keys` and `values`: the lane's first vectors of the KV head in page 0. All lanes of a warp, as for
  // AskKeys and AskValues.
  __device__ __forceinline__ Rounds(const void* shared, const KvView& kv, const int32_t* pages, const uint4* keys,
                                    const uint4* values, uint32_t token_vectors, int first, int step, int last)
      : kv_(kv),
        pages_(pages),
        keys_(keys),
        values_(values),
        token_vectors_(token_vectors),
        first_(first),
        step_(step),
        last_(last) {
    page_vectors_ = static_cast<uint32_t>(kv.num_kv_heads) * token_vectors << kv.page_shift;
    slots_ = SharedAddress(shared) + threadIdx.x * static_cast<uint32_t>(sizeof(uint4));
    Fetch();
  }
  // The next round's, if there is one, in the slots of a stage whose own were taken: keys, then values.
  __device__ __forceinline__ void AskKeys(int stage, bool have) {
    page_ = static_cast<uint32_t>(__shfl_sync(0xffffffffu, fetched_, taken_ * kGroups + Group())) * page_vectors_;
    Ask(keys_, stage * kVectors, have);
  }
  __device__ __forceinline__ void AskValues(int stage, bool have) {
    Ask(values_, stage * kVectors + kStep, have);
    first_ += step_;
    if (++taken_ == kFetched) Fetch();
  }
  // The round that was issued kAhead rounds ago. Requires: kAhead rounds of each kind in flight, and no more.
  __device__ __forceinline__ void TakeKeys(int stage, uint4 (&k)[kStep]) const { Take(stage * kVectors, k); }
  __device__ __forceinline__ void TakeValues(int stage, uint4 (&v)[kStep]) const { Take(stage * kVectors + kStep, v); }

 private:
  static constexpr int kGroups = 32 / kLanes;  // of lanes, each with positions of its own
  static constexpr int kFetched = kLanes;      // rounds whose pages 32 lanes hold

  __device__ __forceinline__ static int Group() { return static_cast<int>(threadIdx.x & 31) / kLanes; }
  // Lane i gets the page of group i % kGroups in round i / kGroups from here.
  __device__ __forceinline__ void Fetch() {
    const int lane = static_cast<int>(threadIdx.x & 31);
    const int t = first_ + (lane % kGroups - Group()) * kStep + lane / kGroups * step_;
    fetched_ = __ldg(pages_ + (min(t, last_) >> kv_.page_shift));
    taken_ = 0;
  }
  __device__ __forceinline__ uint32_t Slot(int i) const {
    return slots_ + static_cast<uint32_t>(i * kThreads) * static_cast<uint32_t>(sizeof(uint4));
  }
  __device__ __forceinline__ void Ask(const uint4* from, int slot, bool have) {
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const int t = min(first_ + i, last_) & (kv_.page_tokens - 1);
      // 32 bits: CudaKvCache sees to it.
      if (have) CopyAsync16(Slot(slot + i), from + (page_ + static_cast<uint32_t>(t) * token_vectors_));
    }
    CommitCopies();
  }
  __device__ __forceinline__ void Take(int slot, uint4 (&to)[kStep]) const {
    WaitForCopies<2 * kAhead - 1>();
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[i].x), "=r"(to[i].y), "=r"(to[i].z), "=r"(to[i].w)
                   : "r"(Slot(slot + i))
                   : "memory");
    }
  }

  const KvView& kv_;
  const int32_t* pages_;
  const uint4* keys_;
  const uint4* values_;
  uint32_t token_vectors_;
  uint32_t page_vectors_;
  int first_;
  int step_;
  int last_;
  uint32_t slots_;
  int32_t fetched_ = 0;
  int taken_ = 0;
  uint32_t page_ = 0;  // in vectors
};

// The running softmax of a warp: scores of a round, one per head and token, are spread over the lanes of a group,
// `kOwn` of one head for each. Where there are more lanes than scores, kSame neighbours have the same ones.
template <int kLanes, int kHeads>
struct Softmax {
  static constexpr int kGroups = 32 / kLanes;  // tokens of a warp
  static constexpr int kDims = kLanes * kVector;
  static constexpr int kScores = kHeads * kStep;
  static constexpr int kOwn = kScores > kLanes ? kScores / kLanes : 1;
  static constexpr int kSame = kScores < kLanes ? kLanes / kScores : 1;
  static constexpr int kHeadLanes = kSame * kStep / kOwn;  // lanes of a group with scores of the same head
  static_assert(kOwn <= kStep);

  float largest = kLowest;  // of this lane's head, in the whole warp
  float sum = 0.0f;         // of this lane's weights
  float out[kHeads][kVector] = {};

  // Offset of the lane's first token in a round from the slot's.
  __device__ __forceinline__ static int OwnRound(int lane) { return lane % kHeadLanes / kSame * kOwn; }

  // q k of a round, this lane's part of the dimensions.
  __device__ __forceinline__ static void Dots(const float (&q)[kHeads][kVector], const uint4 (&k_packed)[kStep],
                                              float (&scores)[kScores]) {
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
  }

  // Sums the dots of all lanes, rescales what there is and turns scores into weights. own_token: the lane's first of the
  // round. Returns the factor of what there was.
  __device__ __forceinline__ float Weigh(float (&scores)[kScores], int own_token, int first, int length) {
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
      const int t = own_token + n;
      if (t < first || t >= length) scores[n] = -INFINITY;
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
    return scale;
  }

  // Adds the values of a round by their weights.
  __device__ __forceinline__ void Add(const float (&scores)[kScores], float scale, const uint4 (&v_packed)[kStep]) {
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
  }

  // The warp's record, all its lanes together. dim: the lane's first.
  __device__ __forceinline__ void Write(Records<kHeads, kDims>& records, int warp, int lane, int dim) {
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
      for (int j = 0; j < kVector / kGroups; ++j) records.values[warp][h][first_dim + j] = out[h][j];
    }
    if (lane < kLanes && lane % kHeadLanes == 0) records.stats[warp][lane / kHeadLanes] = make_float2(largest, sum);
  }
};

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

}  // namespace stoch::cuda::attention_half
